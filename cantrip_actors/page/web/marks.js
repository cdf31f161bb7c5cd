// @ts-check
// The words that a person searches are marked in the turns, by the browser: no node changes.

const MOST = 2000;

export function markFound(node, field) {
  if (!globalThis.Highlight) return;
  const mark = () => {
    const wanted = field.value.trim().toLowerCase(),
      ranges = [],
      walk = /** @type {any} */ (document.createTreeWalker(node, NodeFilter.SHOW_TEXT));
    if (wanted.length > 1)
      for (let text = walk.nextNode(); text && ranges.length < MOST; text = walk.nextNode()) {
        const lower = text.data.toLowerCase();
        for (
          let at = lower.indexOf(wanted);
          at >= 0 && lower.length === text.data.length;
          at = lower.indexOf(wanted, at + wanted.length)
        ) {
          const range = new Range();
          range.setStart(text, at);
          range.setEnd(text, at + wanted.length);
          ranges.push(range);
        }
      }
    CSS.highlights.set("found", new Highlight(...ranges));
  };
  let soon = 0;
  const later = () => {
    soon ||= setTimeout(() => {
      soon = 0;
      mark();
    }, 200);
  };
  field.addEventListener("input", later);
  new MutationObserver(() => {
    if (field.value) later();
  }).observe(node, { childList: true, subtree: true });
}
