Theme.start();
document.querySelectorAll("table.sortable").forEach(sortable);
startCharts();
startTimeline();
startNet();
