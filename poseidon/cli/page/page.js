"use strict";
const byId = (id) => document.getElementById(id);
const drop = byId("drop"), file = byId("file"), shown = byId("shown"), status = byId("status");
let latest = 0;

fetch("net").then((answer) => answer.json()).then((net) => { byId("net").textContent = net.name; });

function tell(text, isError) {
  status.textContent = text;
  status.classList.toggle("error", Boolean(isError));
}

function row({ label, score }) {
  const item = document.createElement("li");
  const name = document.createElement("span"), value = document.createElement("span");
  const bar = document.createElement("span"), filled = document.createElement("i");
  name.textContent = label;  // as text: a labels file is not a place for markup
  value.textContent = (100 * score).toFixed(1) + " %";
  value.className = "score";
  bar.className = "bar";
  filled.style.width = Math.max(0, Math.min(100, 100 * score)) + "%";
  bar.append(filled);
  item.append(name, value, bar);
  return item;
}

async function classify(image) {
  const turn = ++latest;  // an answer that comes after a later question is not shown
  byId("results").replaceChildren();
  URL.revokeObjectURL(shown.src);
  shown.src = URL.createObjectURL(image);
  shown.hidden = false;
  byId("hint").hidden = true;
  tell("Looking …");
  try {
    const answer = await fetch("classify", { method: "POST", body: image });
    const found = await answer.json();
    if (turn !== latest) return;
    if (!answer.ok) return tell(found.error, true);
    byId("results").replaceChildren(...found.top.map(row));
    tell(`${Math.round(found.milliseconds)} ms`);
  } catch {
    if (turn === latest) tell("The server does not answer; is it still running?", true);
  }
}

file.addEventListener("change", () => file.files[0] && classify(file.files[0]));
for (const event of ["dragenter", "dragover"]) {
  drop.addEventListener(event, (e) => { e.preventDefault(); drop.classList.add("over"); });
}
drop.addEventListener("dragleave", () => drop.classList.remove("over"));
drop.addEventListener("drop", (e) => {
  e.preventDefault();
  drop.classList.remove("over");
  if (e.dataTransfer.files[0]) classify(e.dataTransfer.files[0]);
});
// An image dropped beside the field must not replace the page.
for (const event of ["dragover", "drop"]) window.addEventListener(event, (e) => e.preventDefault());
