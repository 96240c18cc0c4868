import { setTimeout as sleep } from "node:timers/promises";

const BASE = process.env.API_BASE ?? "https://api.example.com/v1";

export async function request(path: string, params: Record<string, string>): Promise<unknown> {
  for (let i = 0; i < 3; i++) {
    const r = await fetch(`${BASE}${path}?${new URLSearchParams(params)}`);
    if (r.status !== 429) return r.json();
    await sleep(1000 * 2 ** i);
  }
  throw new Error("rate limited");
}
