// pg-boss with the settings of pg_boss.py, which says why.
import { ADDRESS, main, packages } from "./program.mjs";

const { PgBoss } = packages("pg-boss");
const QUEUE = "noop";

async function started() {
  const boss = new PgBoss({ connectionString: ADDRESS, max: 10, useListenNotify: true });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

await main({
  async install() {
    const boss = await started();
    await boss.createQueue(QUEUE, { notify: true });
    await boss.stop();
  },
  async opened() {
    const boss = await started();
    return {
      one: (number) => boss.send(QUEUE, { number }),
      many: (numbers) => boss.insert(QUEUE, numbers.map((number) => ({ data: { number } }))),
      close: () => boss.stop({ graceful: false }),
    };
  },
  async work(hit) {
    const boss = await started();
    const settings = {
      batchSize: Number(process.env.BATCH ?? 1000),
      localConcurrency: Number(process.env.CONCURRENCY ?? 2),
      pollingIntervalSeconds: 0.5,
      burstWhenBatchFull: true,
    };
    await boss.work(QUEUE, settings, async (jobs) => jobs.forEach((job) => hit(job.data.number)));
  },
});
