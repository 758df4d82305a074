// A worker in JavaScript, for Node 20 and without packages. Each export of HANDLERS is a task: a function of
// (payload, job), whose result is the job's. `job.signal` tells it to stop, `job.progress(0.5, "half")` how far it is.
//     SHIGOTO_URL=http://127.0.0.1:8710 SHIGOTO_TOKEN=shg_… node worker.mjs HANDLERS.mjs [HOW MANY AT ONCE]
import { hostname } from "node:os";
import { resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const api = `${process.env.SHIGOTO_URL ?? "http://127.0.0.1:8710"}/api/v1`;
const token = process.env.SHIGOTO_TOKEN;
const handlers = await import(pathToFileURL(resolve(process.argv[2])));
const most = Number(process.argv[3] ?? 10);
const held = new Map(); // number -> {job, stop, done}
const stopping = new AbortController();
let me = {};

// One request. Status 0: no answer came, so that nobody knows whether it was heard.
async function ask(method, path, body, signal = AbortSignal.timeout(60_000)) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  try {
    const answer = await fetch(api + path, { method, headers, signal, body: body && JSON.stringify(body) });
    const text = await answer.text();
    return { status: answer.status, said: text ? JSON.parse(text) : null };
  } catch (error) {
    return { status: 0, said: { detail: String(error.cause ?? error) } };
  }
}

const mayHelp = (status) => status === 0 || status === 429 || status >= 500; // to ask again

async function register() {
  const worker = { name: `${hostname()}:${process.pid}`, tasks: Object.keys(handlers), slots: most, lease: 30 };
  for (;;) {
    const { status, said } = await ask("POST", "/workers", { ...worker, pid: process.pid });
    if (status === 201) return (me = said);
    if (!mayHelp(status)) throw new Error(`The server does not take this worker: ${said?.detail ?? status}`);
    await sleep(2_000);
  }
}

const leases = () => [...held.values()].map(({ job: { id, number, token } }) => ({ id, number, token }));

// A sign of life three times per lease, whatever the handlers do; it tells which jobs to stop.
async function beat() {
  const { status, said } = await ask("POST", `/workers/${me.worker}/beat`, { held: leases() });
  if (status === 410) for (const { stop } of held.values()) stop.abort(); // others have our jobs
  if (status === 200) for (const { number } of [...said.cancels, ...said.lost]) held.get(number)?.stop.abort();
}

async function run(job) {
  const stop = new AbortController();
  const path = `/workers/${me.worker}/jobs/${job.id}`;
  const entry = { job, stop };
  held.set(job.number, entry);
  job.signal = stop.signal;
  job.progress = (progress, text) => ask("POST", `${path}/progress`, { token: job.token, progress, text });
  job.checkpointAt = (checkpoint) => ask("POST", `${path}/checkpoint`, { token: job.token, checkpoint });
  let end;
  try {
    end = { outcome: "completed", result: (await handlers[job.task](job.payload, job)) ?? null };
  } catch (error) {
    const outcome = stopping.signal.aborted && stop.signal.aborted ? "released" : "errored";
    end = { outcome, error: String(error).slice(0, 4_000), traceback: String(error?.stack ?? "").slice(0, 16_000) };
  }
  let answer = await ask("POST", `${path}/settle`, { token: job.token, ...end });
  while (mayHelp(answer.status)) {
    await sleep(2_000); // to say it twice does no harm
    answer = await ask("POST", `${path}/settle`, { token: job.token, ...end });
  }
  held.delete(job.number);
  console.log(job.task, job.id, answer.said?.state ?? answer.said?.code);
}

async function stop() {
  if (stopping.signal.aborted) return;
  stopping.abort();
  for (const { stop } of held.values()) stop.abort();
}

process.on("SIGTERM", stop);
process.on("SIGINT", stop);
await register();
const beating = setInterval(beat, me.beat_every * 1_000);
let room = () => {};
while (!stopping.signal.aborted) {
  if (held.size >= most) {
    await new Promise((resolve) => (room = resolve));
    continue;
  }
  // What we hold: the jobs of an answer that was lost are not among it, and come back.
  const wanted = { limit: Math.min(most - held.size, 500), wait: held.size ? 1 : 10, held: leases() };
  const signal = AbortSignal.any([stopping.signal, AbortSignal.timeout(60_000)]);
  const { status, said } = await ask("POST", `/workers/${me.worker}/claim`, wanted, signal);
  if (status === 200) for (const job of said.jobs) run(job).finally(() => room());
  else if (status === 410) await register();
  else if (!stopping.signal.aborted) await sleep(2_000);
}
while (held.size) await sleep(20);
clearInterval(beating);
await ask("DELETE", `/workers/${me.worker}`);
process.exit(0);
