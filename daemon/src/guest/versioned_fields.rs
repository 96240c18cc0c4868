//! Request fields of later generations of the guest's protocol. A guest silently ignores fields that it does not know,
//! so the daemon must not send them to an older guest.

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;

/// Generation that added programs, writes with an id or a wait, and collections limited to an exec's lifetime.
const SECOND: u32 = 2;

/// Request with fields that older guests do not know.
pub trait VersionedFields {
    /// Returns a field that is set and unknown to guests of this generation; `None` if there is none.
    fn unknown_to(&self, generation: u32) -> Option<&'static str>;
}

impl VersionedFields for pb::ExecSpec {
    fn unknown_to(&self, generation: u32) -> Option<&'static str> {
        let programs = self.programs.as_ref().map(|_| "spec.programs");
        programs.filter(|_| generation < SECOND)
    }
}

impl VersionedFields for guest::WriteStdinRequest {
    fn unknown_to(&self, generation: u32) -> Option<&'static str> {
        let field = if !self.request_id.is_empty() {
            Some("write_id")
        } else {
            self.wait.as_ref().map(|_| "wait")
        };
        field.filter(|_| generation < SECOND)
    }
}

impl VersionedFields for guest::CollectRequest {
    fn unknown_to(&self, generation: u32) -> Option<&'static str> {
        let until = self.spec.as_ref().is_some_and(|spec| spec.until_exec_end);
        (until && generation < SECOND).then_some("spec.until_exec_end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn needs_the_second(asked: &impl VersionedFields, field: &str) {
        assert_eq!(asked.unknown_to(1), Some(field));
        assert_eq!(asked.unknown_to(2), None);
    }

    #[test]
    fn fields_unknown_to_an_old_guest_are_found() {
        let spec = pb::ExecSpec {
            programs: Some(pb::ExecPrograms::default()),
            ..pb::ExecSpec::default()
        };
        needs_the_second(&spec, "spec.programs");
        assert_eq!(pb::ExecSpec::default().unknown_to(1), None);

        let known = guest::WriteStdinRequest {
            request_id: "a".into(),
            ..guest::WriteStdinRequest::default()
        };
        needs_the_second(&known, "write_id");
        let bounded = guest::WriteStdinRequest {
            wait: Some(prost_types::Duration::default()),
            ..guest::WriteStdinRequest::default()
        };
        needs_the_second(&bounded, "wait");
        let placed = guest::WriteStdinRequest {
            offset: Some(0),
            eof: true,
            ..guest::WriteStdinRequest::default()
        };
        assert_eq!(placed.unknown_to(1), None);

        let collect = |until_exec_end| guest::CollectRequest {
            spec: Some(pb::CollectSpec {
                until_exec_end,
                ..pb::CollectSpec::default()
            }),
        };
        needs_the_second(&collect(true), "spec.until_exec_end");
        assert_eq!(collect(false).unknown_to(1), None);
    }
}
