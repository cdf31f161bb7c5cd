// @ts-check
// Files and context that a person sends with an intent, in the form of the API's bodies.

import { h, number, setText, sign } from "./dom.js";

const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

export const fileField = () => h("input", { type: "file", multiple: true, "aria-label": "Files" });

// The same as one small button, with the number of chosen files: `node` is for the page, `take` returns the files and
// forgets them.
export function attachButton() {
  const input = fileField(),
    count = h("span", { class: "count" });
  const show = () => setText(count, input.files.length ? number(input.files.length) : "");
  input.classList.add("unseen");
  input.addEventListener("change", show);
  return {
    node: h("label", { class: "attach", title: "Attach files" }, input, sign("clip"), count),
    files: () => [...input.files],
    clear: () => {
      input.value = "";
      show();
    },
  };
}

const read = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} could not be read: ${reader.error.message}`));
    reader.readAsDataURL(file);
  });

// Return the fields of a body: images, and other files with their names.
export async function attached(chosen) {
  const images = [],
    files = [];
  for (const file of chosen) {
    const url = await read(file);
    if (IMAGES.has(file.type)) images.push(url);
    else files.push({ url, filename: file.name });
  }
  return { ...(images.length ? { images } : {}), ...(files.length ? { files } : {}) };
}

// Context is JSON if it reads as JSON, and text otherwise.
export function parseContext(text) {
  if (!text.trim()) return {};
  try {
    return { context: JSON.parse(text) };
  } catch {
    return { context: text };
  }
}
