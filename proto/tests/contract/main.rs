//! Contract of the wire: the golden list of its fields and roles, the published descriptors, names that every language can
//! use, the names of status codes, the documented error reasons, and the calls that clients may repeat.

mod api_document;
mod api_names;
mod code_names;
mod compat;
mod descriptor_set;
mod exit_codes;
mod generated_accessors;
mod generated_code;
mod generated_members;
mod generated_types;
mod methods;
mod reasons;
mod reserved_words;
mod samples;
mod service_config;
