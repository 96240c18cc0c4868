//! The skill tools against a fake daemon in this process, over a real socket.

mod agent_zero;
mod call_cancellation;
mod conversation;
mod conversations;
mod many_skills;
mod packages;
mod schema;
mod servers;
mod sherma;
mod skill_paths;
mod stdio_servers;
mod tools_trpc;
