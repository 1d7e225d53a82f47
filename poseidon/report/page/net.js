// The drawing of the net: buttons, + − 0 and Ctrl with the wheel change its size; the frame scrolls.

function startNet() {
  const frame = document.getElementById("net-frame");
  const svg = frame?.querySelector("svg");
  if (!svg) return;
  const width = svg.width.baseVal.value, height = svg.height.baseVal.value;
  const fitting = Math.min(1, (frame.clientWidth - 2) / width);
  let scale = 1;
  const set = (wanted) => {
    const before = scale;
    scale = Math.min(3, Math.max(Math.min(0.2, fitting), wanted));
    const middle = [frame.scrollLeft + frame.clientWidth / 2, frame.scrollTop + frame.clientHeight / 2];
    svg.setAttribute("width", width * scale);
    svg.setAttribute("height", height * scale);
    frame.scrollLeft = (middle[0] * scale) / before - frame.clientWidth / 2;
    frame.scrollTop = (middle[1] * scale) / before - frame.clientHeight / 2;
    frame.dataset.scale = scale;
  };
  const actions = { in: () => set(scale * 1.25), out: () => set(scale / 1.25), fit: () => set(fitting), full: () => set(1) };
  for (const button of document.querySelectorAll("[data-net]")) {
    button.addEventListener("click", actions[button.dataset.net]);
  }
  frame.addEventListener("keydown", (event) => {
    const action = { "+": actions.in, "=": actions.in, "-": actions.out, 0: actions.full }[event.key];
    if (!action || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    action();
  });
  frame.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    set(scale * Math.exp(-event.deltaY / 300));
  }, { passive: false });
  set(Math.max(fitting, 0.55)); // smaller than that nobody reads it
  frame.scrollTop = 0;
}
