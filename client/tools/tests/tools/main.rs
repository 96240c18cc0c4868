//! The skill tools against a fake daemon in this process, over a real socket.

mod agent_zero;
mod call_cancellation;
mod conversation;
mod conversations;
mod schema;
mod servers;
mod sherma;
mod stdio_servers;
mod skill_paths;
mod tools_trpc;
