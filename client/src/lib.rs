//! Client of skilld.
