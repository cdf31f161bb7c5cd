// What every JavaScript sandbox has run before the entity's first line: gates as plain functions, a console, and the
// way a result leaves. It evaluates to the functions that the host keeps; everything it needs of the language is taken
// here, so that a program that changes JSON or Array harms nobody's gates. Nothing in here is trusted by the host.
(function (host) {
  "use strict";
  const { parse, stringify } = JSON;
  const { apply, defineProperty } = Reflect; // this defineProperty answers false where Object's would throw
  const { keys, getPrototypeOf, isExtensible } = Object;
  const { then } = Promise.prototype;
  const { slice, toWellFormed } = String.prototype;
  const { forEach, includes, push } = Array.prototype;
  const objectPrototype = Object.prototype;
  const { isPrototypeOf } = objectPrototype;
  const Big = BigInt;
  const isArray = Array.isArray, isView = ArrayBuffer.isView, from = Array.from, entries = Object.fromEntries;
  const [BaseError, Syntax, Type, Eventual, Dictionary, Collection, text, number] =
    [Error, SyntaxError, TypeError, Promise, Map, Set, String, Number];
  const { isSafeInteger, isFinite } = Number;
  const { iterator } = Symbol;
  const Pattern = RegExp;
  const { exec } = RegExp.prototype;
  const evaluate = eval; // called by another name, it runs its code in the global scope
  const early = /^\s*at <input>:\d+:\d+\n\s*at eval \(native\)\n\s*at (compiled|run) /;
  const largest = 8 * 1024 * 1024; // the host bounds the bytes of it in UTF-8 as well
  const root = globalThis;

  const isA = (kind, value) => apply(isPrototypeOf, kind.prototype, [value]); // `instanceof` asks the program first

  const plain = (_key, value) => {
    if (typeof value === "bigint") return isSafeInteger(number(value)) ? number(value) : text(value);
    if (typeof value === "number" && !isFinite(value)) return text(value); // JSON has no word for it but null
    if (typeof value !== "object" || value === null) return value;
    if (isA(Dictionary, value)) return entries(value);
    if (isA(Collection, value) || isView(value)) return from(value);
    if (isA(BaseError, value)) return { __proto__: null, name: value.name, message: value.message };
    if (isA(Pattern, value)) return text(value);
    if (isA(Eventual, value)) return "[a promise: write await before it]";
    return value;
  };
  // What is passed on has to be what was meant; what is only shown may be any text.
  const passed = (key, value) => {
    if (typeof value === "object" && value !== null && !isArray(value)) {
      if (isA(Eventual, value)) throw new Type("a promise cannot be passed on: write await before it");
      const made = plain(key, value);
      return made === value && !isA(text, value) && typeof value[iterator] === "function" ? from(value) : made;
    }
    return plain(key, value);
  };
  // JSON of either direction says an integer beyond 2**53 as text after a NUL and an n, and doubles the NUL of other text
  // that begins with one: `values.py` reads and writes the same.
  const exactly = (replace) => (key, value) => {
    const made = replace(key, value);
    if (typeof value === "bigint" && typeof made === "string") return `\0n${made}`;
    return typeof made === "string" && made[0] === "\0" ? `\0${made}` : made;
  };
  const revive = (_key, value) => {
    if (typeof value !== "string" || value[0] !== "\0") return value;
    return value[1] === "n" ? Big(apply(slice, value, [2])) : apply(slice, value, [1]);
  };
  const read = (sent) => {
    const json = apply(slice, sent, [1]);
    return sent[0] === "b" ? parse(json, revive) : parse(json);
  };
  const [shown, handed] = [exactly(plain), exactly(passed)];
  const bounded = (json, what) => {
    if (json !== undefined && json.length > largest)
      throw new BaseError(`${what} too large: ${json.length} characters of JSON, at most ${largest}`);
    return json;
  };
  const show = (value) => {
    if (typeof value === "string") return value;
    if (typeof value === "function") return `[function ${value.name}]`;
    if (typeof value === "bigint") return `${value}n`;
    if (isA(BaseError, value)) return `${value.name}: ${value.message}`;
    try {
      return (typeof value === "object" && stringify(value, plain)) || text(value);
    } catch {
      return apply(objectPrototype.toString, value, []);
    }
  };

  // ------------------------------------------------------------------------------------------------------------ gates

  const isRecord = (value) =>
    typeof value === "object" && value !== null && !isArray(value) &&
    (getPrototypeOf(value) === objectPrototype || getPrototypeOf(value) === null);
  const allNamed = (value, names) => {
    const own = keys(value);
    for (let i = 0; i < own.length; i++) if (!apply(includes, names, [own[i]])) return false;
    return own.length > 0;
  };
  // read("a.txt"), read({path: "a.txt"}), read("a.txt", {limit: 5})
  const named = (gate, args) => {
    const { names } = gate;
    let count = args.length;
    while (count > 0 && args[count - 1] === undefined) count--;
    const first = args[0];
    if (count === 1 && isRecord(first) && (gate.record || allNamed(first, names))) return first;
    const bound = { __proto__: null }; // nothing that a program hangs on all objects is on this one
    if (count > 1 && count <= names.length + 1) {
      const rest = [];
      for (let i = count - 1; i < names.length; i++) apply(push, rest, [names[i]]);
      const at = count - 1; // an object where none can be is meant to name the rest: a wrong name is told as such
      if (isRecord(args[at]) && (allNamed(args[at], rest) || !gate.objects[at])) {
        const last = args[--count];
        const own = keys(last);
        for (let i = 0; i < own.length; i++) {
          for (let j = 0; j < count; j++)
            if (names[j] === own[i]) throw new Type(`${gate.signature}: got ${own[i]} twice`);
          bound[own[i]] = last[own[i]];
        }
      }
    }
    if (count > names.length) throw new Type(`${gate.signature}: got ${count} arguments`);
    for (let i = 0; i < count; i++) bound[names[i]] = args[i];
    return bound;
  };
  const call = (gate, args) => {
    const made = named(gate, args);
    const own = keys(made);
    for (let i = 0; i < own.length; i++) {
      const kind = typeof made[own[i]];
      if (kind === "function" || kind === "symbol")
        throw new Type(`${gate.name}: argument ${own[i]} is a ${kind}, which cannot be passed on`);
    }
    const json = bounded(stringify(made, handed), `${gate.name}: arguments are`);
    const answer = host(`g${gate.name}\n${json}`);
    if (answer[0] === "e") throw new BaseError(apply(slice, answer, [1]));
    return read(answer);
  };
  // What runs between two programs must not fail, whatever they have done to Object.prototype and to iterators: its
  // objects inherit nothing, and its loops count.
  const hidden = (name, value, owner = root) =>
    defineProperty(owner, name, { __proto__: null, value, writable: true, configurable: true, enumerable: false });
  let gates = [];
  // Answers whether the next program will find its gates, and can define variables.
  const arm = (json) => {
    if (json) gates = parse(json);
    let whole = isExtensible(root);
    for (let i = 0; i < gates.length; i++) {
      const gate = gates[i];
      const value = (...args) => call(gate, args);
      defineProperty(value, "name", { __proto__: null, value: gate.calls[0], configurable: true });
      for (let j = 0; j < gate.calls.length; j++) whole = hidden(gate.calls[j], value) && whole;
    }
    full = false;
    return whole;
  };
  const assign = (sent) => {
    const values = read(sent);
    const names = keys(values);
    for (let i = 0; i < names.length; i++)
      defineProperty(root, names[i], {
        __proto__: null, value: values[names[i]], writable: true, configurable: true, enumerable: true,
      });
  };

  // ---------------------------------------------------------------------------------------------------------- console

  let full = false;
  const print = (...args) => {
    if (full) return;
    let line = "";
    for (let i = 0; i < args.length; i++) line += (i ? " " : "") + show(args[i]);
    // half an emoji, as a text cut in the middle has, is no text for the host
    full = host(`p${apply(toWellFormed, apply(slice, line, [0, largest]), [])}\n`) === "f";
  };
  const assert = (holds, ...args) => { if (!holds) print("Assertion failed:", ...args); };
  const nothing = () => {};
  const console = {
    log: print, info: print, warn: print, error: print, debug: print, dir: print, table: print, trace: print,
    group: print, groupEnd: nothing, time: nothing, timeEnd: nothing, timeLog: nothing, assert,
  };
  hidden("console", console);
  hidden("print", print);

  // ----------------------------------------------------------------------------------------------- promises not awaited

  // The engine does not say which rejected promises nothing has awaited. So `source.py` marks the statements that drop the
  // result of a call, and a promise that is dropped there tells its rejection.
  let lost = [];
  const watch = (value) => {
    if (typeof value === "object" && value !== null && isA(Eventual, value))
      try { apply(then, value, [nothing, (error) => { apply(push, lost, [error]); }]); } catch { /* it is none any more */ }
    return value;
  };
  defineProperty(objectPrototype, "__dropped", { __proto__: null, get() { return watch(this); }, configurable: true });
  const eventual = getPrototypeOf(async () => {}); // of async functions
  const watched = (each, self) => (...args) => { watch(apply(each, self, args)); };
  hidden("forEach", { forEach(each, self) {
    const isEventual = typeof each === "function" && getPrototypeOf(each) === eventual;
    return apply(forEach, this, isEventual ? [watched(each, self)] : [each, self]);
  } }.forEach, Array.prototype);

  // ------------------------------------------------------------------------------------------------------------- turn

  let state = { __proto__: null };
  const done = (value) => { state = { __proto__: null, value }; };
  const fail = (error) => { state = { __proto__: null, failed: true, error }; };
  const settle = (value) => {
    done(value);
    if (isA(Eventual, value)) apply(then, value, [done, fail]);
  };
  const await_ = (promise) => {
    state = { __proto__: null, waits: true };
    apply(then, promise, [(result) => settle(result.value), fail]);
  };
  // The rewritten program, and where that does not even compile, the program as it stands.
  const compiled = (code, original) => {
    try {
      return evaluate(code);
    } catch (error) {
      if (code === original || !isA(Syntax, error) || !apply(exec, early, [error.stack])) throw error;
    }
    return evaluate(original);
  };
  const run = (code, original) => {
    try {
      settle(compiled(code, original));
    } catch (error) {
      fail(error);
    }
  };
  // What stands behind an error: its cause, and the errors that an AggregateError is of.
  const behind = (error) => {
    let said = "";
    const { cause, errors } = error;
    if (isArray(errors)) for (let i = 0; i < errors.length && i < 10; i++) said += `${i ? ", " : ": "}${show(errors[i])}`;
    if (cause !== undefined) said += `; caused by ${show(cause)}`;
    return said;
  };
  const cut = (said) => apply(slice, said, [0, 1000000]); // nobody reads that much of an error
  const told = (error, note = "") => {
    try {
      if (isA(BaseError, error))
        return stringify({
          __proto__: null, name: cut(text(error.name)), message: cut(text(error.message) + behind(error)) + note,
          stack: cut(text(error.stack)),
        });
      return stringify({ __proto__: null, name: "", message: cut(show(error)) + note, stack: "" });
    } catch {
      return '{"name":"Error","message":"(an error that cannot be shown)","stack":""}';
    }
  };
  const report = () => {
    const { value, failed, error, waits } = state;
    const rejected = lost;
    state = { __proto__: null };
    lost = [];
    if (!arm("")) return "g";
    if (!failed && rejected.length) return "e" + told(rejected[0], "; nothing awaits the promise that it rejected");
    if (waits) return 'e{"name":"Error","message":"the program awaits a promise that nothing settles","stack":""}';
    if (failed) return "e" + told(error);
    if (isA(Eventual, value) || typeof value === "symbol") return "v";
    let json;
    try {
      json = stringify(typeof value === "function" ? show(value) : value, shown);
    } catch (problem) {
      if (isA(BaseError, problem) && problem.message === "out of memory")
        return "e" + told(new BaseError("the value is too large: there is no memory left for its JSON"));
      let why = "an error that cannot be shown";
      try { why = show(problem); } catch { /* that is what it says */ }
      return "v" + stringify(`(no JSON: ${why})`);
    }
    try {
      return "v" + (bounded(json, "the value is") ?? "");
    } catch (problem) {
      return "e" + told(problem);
    }
  };
  return [run, await_, report, arm, assign];
})
