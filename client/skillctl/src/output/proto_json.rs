//! JSON forms of API messages: every list and counter is present, and bytes that are text have a text field beside them.

use std::sync::OnceLock;

use anyhow::Context as _;
use data_encoding::BASE64;
use prost::Name;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::Value;
use skilld_client::v1;

/// Returns a message of `skilld.v1` in the JSON mapping of protobuf. Empty lists and zero values are included.
pub(crate) fn from_message<M: Name>(message: &M) -> anyhow::Result<Value> {
    let descriptor = descriptor_pool()?
        .get_message_by_name(&M::full_name())
        .with_context(|| format!("the API has no message {}", M::NAME))?;
    let message = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())?;
    let options = SerializeOptions::new().skip_default_fields(false);
    let mut value = message.serialize_with_options(serde_json::value::Serializer, &options)?;
    add_texts(&mut value);
    if let Value::Object(fields) = &mut value {
        // Every command reads all pages.
        fields.remove("nextPageToken");
    }
    Ok(value)
}

fn descriptor_pool() -> anyhow::Result<&'static DescriptorPool> {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    if let Some(pool) = POOL.get() {
        return Ok(pool);
    }
    let decoded = DescriptorPool::decode(v1::FILE_DESCRIPTOR_SET)?;
    Ok(POOL.get_or_init(|| decoded))
}

/// Adds `text` to each piece of output whose `data` is UTF-8.
fn add_texts(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(add_texts);
            let data = fields.get("data").and_then(Value::as_str);
            if fields.contains_key("stream")
                && let Some(text) = data.and_then(decode_text)
            {
                fields.insert("text".to_owned(), Value::String(text));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(add_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn decode_text(base64: &str) -> Option<String> {
    String::from_utf8(BASE64.decode(base64.as_bytes()).ok()?).ok()
}

/// Returns bytes as a pair of JSON values: their text, null where they are not UTF-8, and their base64.
pub(crate) fn from_bytes(bytes: &[u8]) -> (Value, Value) {
    let text = std::str::from_utf8(bytes).ok().map(ToOwned::to_owned);
    (text.into(), BASE64.encode(bytes).into())
}
