// @ts-check
// One event stream for the page. It begins with a snapshot each time, so whatever was missed is there again.

const KINDS = [
  "entity",
  "intent",
  "steer",
  "turn",
  "request",
  "decision",
  "adopt",
  "fold",
  "undo",
  "reward",
  "resume",
  "episode",
  "end",
  "forget",
  "upsert",
];

export class Connection {
  #source = null;
  #timer = 0;
  constructor(model, observes, { onSnapshot, onLost }) {
    this.model = model;
    this.kinds = observes ? [...KINDS, "actor"] : KINDS;
    this.onSnapshot = onSnapshot;
    this.onLost = onLost;
  }
  open() {
    this.close();
    const source = (this.#source = new EventSource(`api/v1/events?kinds=${this.kinds.join(",")}`));
    const on = (kind, work) =>
      source.addEventListener(kind, (event) => work(JSON.parse(event.data), event.lastEventId));
    on("snapshot", (data) => this.onSnapshot(this.model.snapshot(data)));
    on("actor", (data) => this.model.setActors(data));
    on("upsert", ({ payload }) => this.model.upsert(payload));
    for (const kind of KINDS)
      if (kind !== "upsert") on(kind, (data, id) => this.model.take(kind, data, id.slice(id.lastIndexOf(":") + 1)));
    source.onerror = () => {
      this.onLost();
      if (source.readyState === EventSource.CLOSED && source === this.#source)
        this.#timer = setTimeout(() => this.open(), 2000);
    };
  }
  close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}
