// A page that is opened from a disk may start no Worker, and the search of the site runs in one. There, this class takes
// its place: it runs the script in a hidden frame.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.onmessage = null;
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inside = this.frame.contentWindow;
    const page = inside.document;
    page.open(); // as the page of this document, so that the script's address may be a relative one
    page.write("<!doctype html><body></body>");
    page.close();
    inside.postMessage = data => queueMicrotask(() => this.receive(structuredClone(data)));
    inside.importScripts = async (...urls) => {
      for (const next of urls) await load(page, next);
    };
    this.isLoaded = load(page, url);
  }

  receive(data) {
    const message = new MessageEvent("message", { data });
    this.onmessage?.(message);
    this.dispatchEvent(message);
  }

  postMessage(data) {
    const inside = this.frame.contentWindow;
    const message = new MessageEvent("message", { data: structuredClone(data) });
    this.isLoaded.then(() => inside.dispatchEvent(message));
  }

  terminate() {
    this.frame.remove();
  }
}

function load(page, url) {
  return new Promise((resolve, reject) => {
    const script = page.createElement("script");
    script.src = url;
    script.onload = resolve;
    script.onerror = reject;
    page.body.append(script);
  });
}

if (location.protocol === "file:") Object.assign(globalThis, { Worker: FrameWorker });
