// The service's event stream, played by a test: the page parses, keeps and shows what it is sent as it always does.
(() => {
  window.EventSource = class extends EventTarget {
    static CLOSED = 2;
    constructor() {
      super();
      window.stage = this;
      this.readyState = 1;
    }
    close() { this.readyState = 2; }
    send(kind, data, id = "") {
      this.dispatchEvent(new MessageEvent(kind, { data: JSON.stringify(data), lastEventId: id }));
    }
  };
  const entity = (id, at, more = {}) => ({ id, cantrip: "many", intent: `intent of ${id}`, parent: null, turns: 0,
    lasting: true, state: "active", over: false, began: new Date(at).toISOString(), ...more });
  const actor = (path, more = {}) => ({ path, kind: "EntityActor", state: "up", since: 1, mailbox: 0, in_hand: 0,
    restarts: 0, exit: null, ...more });
  const say = (sessionId, turnId, itemId, content) => window.stage.send("upsert", { payload: { type: "message",
    sessionId, turnId, itemId, status: "update", content } });
  window.play = {
    say,
    begin(count) {
      const entities = [], rows = [actor("root", { kind: "Supervisor" })];
      for (let n = 0; n < count; n++) {
        entities.push(entity(`e${n}`, 1e12 + n, { parent: n % 20 ? `e${n - (n % 20)}` : null }));
        rows.push(actor(`root/e${n}`));
      }
      window.stage.send("snapshot", { entities, items: [], actors: { rows, crashes: [], crystals: [] } });
    },
    add(id, at) { window.stage.send("entity", entity(id, at)); },
    // Of ten updates seven are text, one is an actor's mailbox, and one a turn.
    update(n, count) {
      const id = `e${(n * 7) % count}`, sequence = Math.floor(n / count) + 1, turn = `${id}-${n}`;
      if (n % 10 === 9) {
        window.stage.send("turn", { id: turn, entity_id: id, sequence, content: `says ${n}`, gate_calls: [],
          parent_id: null, utterance: "", truncated: false,
          metadata: { tokens_prompt: 9, tokens_completion: 3, duration_ms: 1 } }, `${id}:${n}`);
      } else if (n % 10 === 8) {
        const rows = [actor(`root/${id}`, { mailbox: n % 3 })];
        window.stage.send("actor", { rows, gone: [], crashes: [], crystals: [] });
      } else say(id, `${turn}+`, `i${n % 10}`, `says ${n} `.repeat(1 + (n % 9)));
    },
    // A thousand updates a second, between frames as they come. Returns the 95th percentile of the frames.
    run(count, seconds, from) {
      return new Promise((done) => {
        const frames = [], began = performance.now();
        let last = began, sent = 0;
        requestAnimationFrame(function frame(now) {
          frames.push(now - last);
          last = now;
          const due = Math.floor(Math.min(seconds * 1000, performance.now() - began));
          for (; sent < due; sent++) window.play.update(from + sent, count);
          if (sent < seconds * 1000) { requestAnimationFrame(frame); return; }
          frames.sort((a, b) => a - b);
          done({ p95: frames[Math.floor(frames.length * 0.95)], sent });
        });
      });
    },
  };
})();
