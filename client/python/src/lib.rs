//! Native module of the Python package `skilld`: calls of `skilld-client` and `skilld-tools` for both kinds of callers.
//!
//! In reading order: `runtime` (the threads of the process), `call` (values and awaitables), `errors`, `connection`,
//! `arguments` and `results` (dictionaries of Python), `run` (execs), `client`, `files` and `tools` (classes of the
//! module), `progress`. The Python files of the package hold its names, defaults and documentation.

mod arguments;
mod call;
mod client;
mod connection;
mod errors;
mod files;
mod progress;
mod results;
mod run;
mod runtime;
mod tools;

use pyo3::prelude::*;

/// Returns the fault of a daemon's version, or None if this package can use the daemon.
#[pyfunction]
fn version_fault(version: &str) -> Option<String> {
    connection::check_version(version).err()
}

/// Returns a new id for an exec or a workspace.
#[pyfunction]
fn new_id() -> String {
    skilld_client::new_exec_id()
}

/// Returns the name by which a command runs in the folder of a staged skill, for its reference.
#[pyfunction]
fn staged_skill_name(reference: arguments::ValidText) -> String {
    let arguments::ValidText(reference) = reference;
    skilld_client::staged_skill_name(&reference).to_owned()
}

#[pymodule]
fn _skilld(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<call::PendingCall>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<files::FileStream>()?;
    module.add_class::<files::FileTransfers>()?;
    module.add_class::<run::RunStream>()?;
    module.add_class::<tools::ToolSession>()?;
    module.add_class::<tools::Toolset>()?;
    module.add_function(wrap_pyfunction!(version_fault, module)?)?;
    module.add_function(wrap_pyfunction!(new_id, module)?)?;
    module.add_function(wrap_pyfunction!(staged_skill_name, module)?)
}
