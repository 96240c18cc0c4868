//! Record of one on-exit collection. Each is a file beside the slot's record, so that the next daemon goes on with it.
//!
//! The file is an encoded [`pb::Exec`] with few fields:
//!
//! | field | holds |
//! |---|---|
//! | `effective_spec.collect` | the requested collection; empty after its end |
//! | `end_time` | time at which the collection began; unset before that |
//! | `collection` | its result; PENDING while it has not ended |

use std::time::SystemTime;

use prost::Message;
use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_collection::State;

/// Collection that was requested for the end of an exec, and how far it has come.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectionRecord {
    /// Requested collection; empty after its end.
    pub spec: pb::CollectSpec,
    /// Progress of the collection.
    pub status: CollectionStatus,
}

/// Progress of an on-exit collection.
#[derive(Debug, Clone, PartialEq)]
pub enum CollectionStatus {
    /// The exec has not ended, or nothing was collected yet.
    Pending,
    /// Files may have been saved since this time.
    Begun(SystemTime),
    /// The collection ended: DONE or FAILED.
    Ended(pb::ExecCollection),
}

impl CollectionRecord {
    /// Creates the record of an exec that is about to start.
    #[must_use]
    pub fn pending(spec: pb::CollectSpec) -> Self {
        let status = CollectionStatus::Pending;
        Self { spec, status }
    }

    /// Creates the record of a collection that has ended. Nothing reads what was requested any more.
    #[must_use]
    pub fn ended(collection: pb::ExecCollection) -> Self {
        Self {
            spec: pb::CollectSpec::default(),
            status: CollectionStatus::Ended(collection),
        }
    }

    /// Returns `true` once the collection has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.status, CollectionStatus::Ended(_))
    }

    /// Returns the time at which the collection began; `None` before that and after its end.
    #[must_use]
    pub fn begin_time(&self) -> Option<SystemTime> {
        match self.status {
            CollectionStatus::Begun(time) => Some(time),
            CollectionStatus::Pending | CollectionStatus::Ended(_) => None,
        }
    }

    /// Returns the collection as clients see it.
    #[must_use]
    pub fn into_collection(self) -> pb::ExecCollection {
        match self.status {
            CollectionStatus::Pending | CollectionStatus::Begun(_) => pb::ExecCollection {
                state: State::Pending.into(),
                ..pb::ExecCollection::default()
            },
            CollectionStatus::Ended(collection) => collection,
        }
    }

    /// Encodes the record for its file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let spec = pb::ExecSpec {
            collect: Some(self.spec.clone()),
            ..pb::ExecSpec::default()
        };
        let exec = pb::Exec {
            effective_spec: Some(spec),
            end_time: self.begin_time().map(Into::into),
            collection: Some(self.clone().into_collection()),
            ..pb::Exec::default()
        };
        exec.encode_to_vec()
    }

    /// Decodes a file. Returns `None` for bytes that are no record.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let exec = pb::Exec::decode(bytes).ok()?;
        let (spec, collection) = (exec.effective_spec?.collect?, exec.collection?);
        let begun = exec.end_time.and_then(|time| time.try_into().ok());
        let status = match (collection.state(), begun) {
            (State::Pending, Some(time)) => CollectionStatus::Begun(time),
            (State::Pending, None) => CollectionStatus::Pending,
            (State::Unspecified | State::Done | State::Failed, _) => {
                CollectionStatus::Ended(collection)
            }
        };
        Some(Self { spec, status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_survives_its_file() {
        let failed = pb::ExecCollection {
            state: State::Failed.into(),
            error: "the guest is lost".to_owned(),
            ..pb::ExecCollection::default()
        };
        let spec = pb::CollectSpec {
            globs: vec!["out/**".to_owned()],
            ..pb::CollectSpec::default()
        };
        for status in [
            CollectionStatus::Pending,
            CollectionStatus::Begun(SystemTime::UNIX_EPOCH),
            CollectionStatus::Ended(failed),
        ] {
            let spec = spec.clone();
            let record = CollectionRecord { spec, status };
            assert_eq!(CollectionRecord::decode(&record.encode()), Some(record));
        }
        assert_eq!(CollectionRecord::decode(b"\xff\xff"), None);
    }
}
