// Fetches the page again and puts its <main> in place of this one. Nothing here reads data or makes markup of it.
const INTERVAL = 2000;
const note = document.getElementById("note");
const pause = document.getElementById("pause");

async function refresh() {
  if (!pause.checked && !document.hidden) {
    try {
      const answer = await fetch(location.href, {
        headers: { accept: "text/html" },
        cache: "no-store",
        signal: AbortSignal.timeout(10000),
      });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.querySelector("main").replaceWith(page.querySelector("main"));
      document.title = page.title;
      document.body.classList.remove("stale");
      note.textContent = "";
    } catch (error) {
      document.body.classList.add("stale");
      note.textContent = `Not refreshed (${error.message}): this is how it was.`;
    }
  }
  setTimeout(refresh, INTERVAL);
}

setTimeout(refresh, INTERVAL);
