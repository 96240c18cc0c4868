//! Contract of the wire: the golden list of its fields, the names of status codes, the documented error reasons, and the
//! calls that clients may repeat.

mod code_names;
mod compat;
mod reasons;
mod service_config;
