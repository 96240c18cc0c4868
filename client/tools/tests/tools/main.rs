//! The skill tools against a fake daemon in this process, over a real socket.

mod agent_zero;
mod argument_values;
mod call_cancellation;
mod conversation;
mod conversations;
mod largest_answers;
mod loaded_skill_staging;
mod many_skills;
mod packages;
mod preloads;
mod run_results;
mod schema;
mod servers;
mod sherma;
mod skill_paths;
mod stdio_servers;
mod tools_trpc;
mod user_only_skills;
