// graphile-worker with the settings of graphile_worker.py, which says why.
import { ADDRESS, main, packages } from "./program.mjs";

const { Logger, makeWorkerUtils, run } = packages("graphile-worker");
const logger = new Logger(() => () => {});
const concurrentJobs = Number(process.env.CONCURRENCY ?? 24);
const best = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
// As long as $MS says, if somebody measures jobs that sleep.
const MS = process.env.KIND === "sleeping" ? Number(process.env.MS) : 0;
const sleeping = (hit) => async ({ number }) => {
  hit(number);
  await new Promise((resolve) => setTimeout(resolve, MS));
};
const preset = {
  worker: {
    connectionString: ADDRESS,
    concurrentJobs,
    maxPoolSize: concurrentJobs + 1,
    ...(process.env.SETTINGS === "default" ? {} : best),
  },
};
const utils = () => makeWorkerUtils({ connectionString: ADDRESS, logger });

await main({
  async install() {
    const opened = await utils();
    await opened.migrate();
    await opened.release();
  },
  async opened() {
    const opened = await utils();
    return {
      one: (number) => opened.addJob("noop", { number }),
      many: (numbers) => opened.addJobs(numbers.map((number) => ({ identifier: "noop", payload: { number } }))),
      close: () => opened.release(),
    };
  },
  work: (hit) => run({ preset, logger, taskList: { noop: MS ? sleeping(hit) : async ({ number }) => hit(number) } }),
});
