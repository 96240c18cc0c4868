//! Contract of the wire: the golden list of its fields, the documented error reasons, and the calls that clients may
//! repeat.

mod compat;
mod reasons;
mod service_config;
