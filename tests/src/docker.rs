//! Docker as the tests look at it: what is there by label, and what must not be.

use std::collections::HashMap;

use anyhow::{Context, Result};
use bollard::Docker;
use bollard::query_parameters::{ListContainersOptionsBuilder, RemoveContainerOptionsBuilder};

/// Label with the id of the daemon instance that owns a container.
pub const LABEL_INSTANCE: &str = "io.skilld.instance";

/// A connection to the local engine.
///
/// # Errors
/// When Docker does not answer.
pub fn connect() -> Result<Docker> {
    Docker::connect_with_defaults().context("connect to Docker")
}

/// Ids of the containers of one instance, stopped ones included.
///
/// # Errors
/// When Docker does not answer.
pub async fn containers(instance: &str) -> Result<Vec<String>> {
    let label = format!("{LABEL_INSTANCE}={instance}");
    let filters = HashMap::from([("label", vec![label.as_str()])]);
    let options = ListContainersOptionsBuilder::default()
        .all(true)
        .filters(&filters)
        .build();
    let list = connect()?.list_containers(Some(options)).await?;
    Ok(list
        .into_iter()
        .filter_map(|container| container.id)
        .collect())
}

/// Removes a container by force, as an operator might, behind the daemon's back.
///
/// # Errors
/// When Docker refuses.
pub async fn remove(id: &str) -> Result<()> {
    let options = RemoveContainerOptionsBuilder::default()
        .force(true)
        .v(true)
        .build();
    Ok(connect()?.remove_container(id, Some(options)).await?)
}
