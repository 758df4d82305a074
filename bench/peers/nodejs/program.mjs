// What every queue for Node.js shares here: the commands that bench/nodejs.py describes, and notes as bench/probe.py
// makes them. A queue gives {install(), opened() -> {one(argument), many(arguments), close()}, work(hit)}.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import readline from "node:readline";

export const ADDRESS = process.env.BENCH_ADDRESS;
export const packages = createRequire(path.join(process.env.BENCH_NODE_FOLDER ?? ".", "here.js"));

const HEADER = 32; // began, first and last of them in ns, waits: 8 bytes each
const MOST_WAITS = 65_536;
const A_MOMENT = 1_000_000_000n;
const now = () => process.hrtime.bigint();

// Notes are written once per turn of the event loop, not once per job.
function notes() {
  const file = fs.openSync(path.join(process.env.BENCH_PROBE, `${process.pid}.probe`), "w+");
  const bytes = Buffer.alloc(HEADER + 8 * MOST_WAITS);
  fs.writeSync(file, bytes, 0, bytes.length, 0);
  let began = 0n, first = 0n, last = 0n, waits = 0, written = 0, planned = false;
  const write = () => {
    planned = false;
    [began, first, last, BigInt(waits)].forEach((value, place) => bytes.writeBigInt64LE(value, 8 * place));
    if (waits > written) {
      fs.writeSync(file, bytes, HEADER + 8 * written, 8 * (waits - written), HEADER + 8 * written);
      written = waits;
    }
    fs.writeSync(file, bytes, 0, HEADER, 0);
  };
  return (argument) => {
    last = now();
    first ||= last;
    began += 1n;
    const moment = BigInt(argument);
    if (moment > A_MOMENT && waits < MOST_WAITS) {
      bytes.writeBigInt64LE(last - moment, HEADER + 8 * waits);
      waits += 1;
    }
    if (!planned) {
      planned = true;
      setImmediate(write);
    }
  };
}

async function calls(queue, { jobs, warm_up, within }) {
  for (let number = 0; number < warm_up; number++) await queue.one(number);
  const started = now();
  const seconds = () => Number(now() - started) / 1e9;
  let done = 0;
  while (done < jobs && (done & 63 || seconds() < within)) {
    await queue.one(done);
    done += 1;
  }
  return { seconds: seconds(), jobs: done };
}

async function chunks(queue, { jobs, size }) {
  const parts = [];
  for (let first = 0; first < jobs; first += size) parts.push(numbers(first, Math.min(size, jobs - first)));
  const started = now();
  for (const part of parts) await queue.many(part);
  return { seconds: Number(now() - started) / 1e9, jobs };
}

const numbers = (first, count) => Array.from({ length: count }, (_, place) => first + place);

// A moment in ns is too large for a number in JSON, so it travels as text.
const DO = {
  calls,
  chunks,
  nothing: async () => ({}),
  one: async (queue, { argument }) => (await queue.one(argument ?? String(now())), {}),
  many: async (queue, { first, jobs }) => (await queue.many(numbers(first, jobs)), {}),
};

async function store(queue) {
  const opened = await queue.opened();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    let answer;
    try {
      answer = await DO[asked.do](opened, asked);
    } catch (error) {
      answer = { error: String(error) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  await opened.close();
  process.exit(0);
}

export async function main(queue) {
  switch (process.argv[2]) {
    case "install":
      await queue.install();
      process.exit(0);
    case "store":
      return store(queue);
    default:
      return queue.work(notes());
  }
}
