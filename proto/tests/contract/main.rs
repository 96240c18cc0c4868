//! Contract of the wire: the golden list of its fields, and the documented error reasons.

mod compat;
mod reasons;
