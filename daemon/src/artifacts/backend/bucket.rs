//! Opens a bucket of an S3-compatible server.

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::{Certificate, ClientOptions, RetryConfig};

use super::start_error;
use crate::config::environments::read_authorities;
use crate::config::{ArtifactStorage, ArtifactsConfig, S3Credentials};
use crate::error::{Chain, Error, Result};

/// Maximum number of retries of one request, all within `artifacts.timeout`.
const RETRIES_MAX: usize = 3;

/// Opens the configured bucket. Connects to nothing yet. Blocks.
pub(super) fn open_bucket(config: &ArtifactsConfig) -> Result<AmazonS3> {
    let ArtifactStorage::Bucket { bucket, .. } = &config.storage else {
        return Err(Error::Internal("not a bucket".into()));
    };
    let ArtifactsConfig {
        endpoint,
        region,
        allow_http,
        credentials: S3Credentials(credentials),
        ..
    } = config;
    // Fails if another part of the daemon has installed the provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A large body may take longer than the timeout; the read timeout ends one that makes no progress.
    let mut client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(config.timeout)
        .with_read_timeout(config.timeout)
        .with_allow_http(*allow_http);
    for authority in read_certificates(config)? {
        client = client.with_root_certificate(authority);
    }
    let retry = RetryConfig {
        max_retries: RETRIES_MAX,
        retry_timeout: config.timeout,
        ..RetryConfig::default()
    };
    // The condition is set here, because AWS_CONDITIONAL_PUT could turn it off: then two saves would get one number.
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_client_options(client)
        .with_retry(retry)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_allow_http(*allow_http);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = region {
        builder = builder.with_region(region);
    }
    for (name, value) in credentials {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    builder
        .build()
        .map_err(|error| start_error(Chain(&error).to_string()))
}

fn read_certificates(config: &ArtifactsConfig) -> Result<Vec<Certificate>> {
    let Some(path) = &config.ca_file else {
        return Ok(Vec::new());
    };
    let pem = read_authorities(path).map_err(start_error)?;
    Certificate::from_pem_bundle(&pem)
        .map_err(|error| start_error(format!("{}: {}", path.display(), Chain(&error))))
}
