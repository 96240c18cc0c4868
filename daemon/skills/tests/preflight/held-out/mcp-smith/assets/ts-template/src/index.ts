import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";
import { request } from "./client.js";

const server = new McpServer({ name: "change-me", version: "0.1.0" });

server.tool("search_items", { query: z.string().min(1), limit: z.number().max(50).default(10) },
  async ({ query, limit }) => {
    const items = await request("/search", { q: query, limit: String(limit) });
    return { content: [{ type: "text", text: JSON.stringify(items, null, 2) }] };
  });

await server.connect(new StdioServerTransport());
