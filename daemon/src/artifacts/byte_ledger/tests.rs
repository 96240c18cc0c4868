//! The ledger alone: reservations of many threads, and counts while records come and go.

use proptest::prelude::*;

use super::*;

fn tenant(name: &str) -> TenantName {
    TenantName::parse(name).expect("a tenant's name")
}

/// Quotas with this limit of bytes.
fn bytes(limit: u64) -> ArtifactQuotas {
    ArtifactQuotas {
        bytes: Some(limit),
        versions: None,
    }
}

fn unlimited() -> ArtifactQuotas {
    ArtifactQuotas::default()
}

fn counted() -> ByteLedger {
    let ledger = ByteLedger::default();
    ledger.begin_count();
    assert_eq!(ledger.finish_count(), 0);
    ledger
}

#[test]
fn fifty_reservations_at_once_never_exceed_the_quota() {
    let (ledger, a) = (counted(), tenant("a"));
    let kept: Vec<ByteReservation> = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..50)
            .map(|_| scope.spawn(|| ledger.reserve(&a, 10, bytes(105)).ok()))
            .collect();
        let results = tries.into_iter().map(|one| one.join().expect("no panic"));
        results.flatten().collect()
    });
    let held = HeldArtifacts {
        bytes: 100,
        versions: 10,
    };
    assert_eq!((kept.len(), ledger.used(&a)), (10, held));
    let refused = ledger.reserve(&a, 6, bytes(105)).expect_err("no room");
    assert!(
        matches!(
            &refused,
            Error::TenantQuota {
                used: 100,
                limit: 105,
                resource: "artifact_bytes",
                ..
            }
        ),
        "{refused}"
    );
    ledger.reserve(&a, 5, bytes(105)).expect("the rest");
    ledger
        .reserve(&tenant("b"), 105, bytes(105))
        .expect("its own");
    // Dropped reservations give their room back.
    drop(kept);
    assert_eq!(ledger.used(&a), HeldArtifacts::default());
    ledger.reserve(&a, 105, bytes(105)).expect("all of it");
}

#[test]
fn versions_are_counted_against_a_quota_of_their_own() {
    let (ledger, a) = (counted(), tenant("a"));
    let quotas = ArtifactQuotas {
        bytes: None,
        versions: Some(2),
    };
    let _kept = [0, 1].map(|_| ledger.reserve(&a, 10, quotas).expect("room"));
    let refused = ledger.reserve(&a, 0, quotas).expect_err("the third one");
    let is_quota = matches!(
        &refused,
        Error::TenantQuota {
            used: 2,
            limit: 2,
            resource: "artifacts",
            ..
        }
    );
    assert!(is_quota, "{refused}");
}

#[test]
fn running_saves_together_take_no_more_than_the_quota() {
    let (ledger, a) = (counted(), tenant("a"));
    let reserve = || ledger.reserve(&a, 10, bytes(100)).expect("room");
    let (mut one, mut other) = (reserve(), reserve());
    one.grow(60, bytes(100)).expect("room");
    other.grow(41, bytes(100)).expect_err("over by one byte");
    other.grow(40, bytes(100)).expect("all that is left");
    other.grow(30, bytes(100)).expect("it has more already");
    other
        .grow(41, bytes(50))
        .expect_err("the quota was lowered");
    drop(one);
    assert_eq!(ledger.used(&a).bytes, 40);
    let key = Path::from("index/k");
    ledger.begin_creation(&key).created(other);
    let held = HeldArtifacts {
        bytes: 40,
        versions: 1,
    };
    assert_eq!(ledger.used(&a), held);
}

#[test]
fn quota_refuses_until_the_first_count_is_complete() {
    let (ledger, a) = (ByteLedger::default(), tenant("a"));
    let refused = ledger.reserve(&a, 0, bytes(1000)).expect_err("not counted");
    assert!(matches!(refused, Error::Storage { .. }), "{refused}");
    let reserved = ledger.reserve(&a, 7, unlimited()).expect("no quota");
    ledger.begin_count();
    let key = Path::from("index/k");
    ledger.add_counted(vec![(key.clone(), a.clone(), 90)], &key);
    assert_eq!(ledger.used(&a).bytes, 97, "what was found so far");
    ledger
        .reserve(&a, 0, bytes(1000))
        .expect_err("not complete");
    assert_eq!(ledger.finish_count(), 90);
    drop(reserved);
    ledger.reserve(&a, 10, bytes(100)).expect("counted");
    ledger.reserve(&a, 11, bytes(100)).expect_err("over");
}

/// Step of a history in which records come and go during counts.
#[derive(Debug, Clone)]
enum Step {
    BeginCreation(u8),
    Create,
    EndCreation,
    BeginRemoval(u8),
    Remove,
    EndRemoval,
    BeginCount,
    ReadPage,
    AddPage,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..12_u8).prop_map(Step::BeginCreation),
        Just(Step::Create),
        Just(Step::EndCreation),
        (0..12_u8).prop_map(Step::BeginRemoval),
        Just(Step::Remove),
        Just(Step::EndRemoval),
        Just(Step::BeginCount),
        Just(Step::ReadPage),
        Just(Step::AddPage),
    ]
}

/// Store whose records are keys and sizes, with one creation, one removal and one count under way.
#[derive(Default)]
struct Model {
    ledger: ByteLedger,
    records: BTreeMap<Path, u64>,
    next_size: u64,
    creation: Option<(RecordChange, ByteReservation, Path, u64)>,
    removal: Option<(RecordChange, Path)>,
    /// Position of the count; `None` without one.
    cursor: Option<Option<Path>>,
    page: Option<Vec<(Path, u64)>>,
}

impl Model {
    fn take(&mut self, step: &Step, a: &TenantName) {
        let key = |number: &u8| Path::from(format!("index/{number:03}"));
        match step {
            Step::BeginCreation(number) => {
                let key = key(number);
                let is_removing = self
                    .removal
                    .as_ref()
                    .is_some_and(|(_, other)| *other == key);
                if self.creation.is_none() && !self.records.contains_key(&key) && !is_removing {
                    self.next_size += 1;
                    let room = self
                        .ledger
                        .reserve(a, self.next_size, unlimited())
                        .expect("room");
                    let change = self.ledger.begin_creation(&key);
                    self.creation = Some((change, room, key, self.next_size));
                }
            }
            Step::Create => {
                if let Some((_, _, key, size)) = &self.creation {
                    self.records.insert(key.clone(), *size);
                }
            }
            Step::EndCreation => {
                if let Some((change, room, key, _)) = self.creation.take()
                    && self.records.contains_key(&key)
                {
                    change.created(room);
                }
            }
            Step::BeginRemoval(number) => {
                let key = key(number);
                let is_creating = self.creation.as_ref().is_some_and(|it| it.2 == key);
                if let Some(size) = self.records.get(&key)
                    && self.removal.is_none()
                    && !is_creating
                {
                    let change = self.ledger.begin_removal(&key, a, *size);
                    self.removal = Some((change, key));
                }
            }
            Step::Remove => {
                if let Some((_, key)) = &self.removal {
                    self.records.remove(key);
                }
            }
            Step::EndRemoval => {
                if let Some((change, key)) = self.removal.take() {
                    self.records.remove(&key);
                    change.removed();
                }
            }
            Step::BeginCount => {
                self.ledger.begin_count();
                (self.cursor, self.page) = (Some(None), None);
            }
            Step::ReadPage => {
                let Some(cursor) = &self.cursor else { return };
                let rest = self
                    .records
                    .iter()
                    .filter(|(key, _)| cursor.as_ref().is_none_or(|at| *key > at));
                let page = rest.take(3).map(|(key, size)| (key.clone(), *size));
                self.page = Some(page.collect());
            }
            Step::AddPage => self.add_page(a),
        }
    }

    fn add_page(&mut self, a: &TenantName) {
        let Some(page) = self.page.take() else { return };
        let Some(last) = page.last().map(|(key, _)| key.clone()) else {
            self.ledger.finish_count();
            self.cursor = None;
            return;
        };
        let found = page.into_iter().map(|(key, size)| (key, a.clone(), size));
        self.ledger.add_counted(found.collect(), &last);
        self.cursor = Some(Some(last));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn count_is_exact_while_versions_come_and_go(steps in proptest::collection::vec(step(), 0..120)) {
        let (mut model, a) = (Model::default(), tenant("a"));
        // The first count is complete when the history begins.
        for step in [Step::BeginCount, Step::ReadPage, Step::AddPage].iter().chain(&steps) {
            model.take(step, &a);
        }
        for step in [Step::EndCreation, Step::EndRemoval] {
            model.take(&step, &a);
        }
        let held = HeldArtifacts {
            bytes: model.records.values().sum(),
            versions: model.records.len() as u64,
        };
        prop_assert_eq!(model.ledger.used(&a), held);
        // A count that is under way comes to the same.
        while model.cursor.is_some() {
            model.take(&Step::ReadPage, &a);
            model.take(&Step::AddPage, &a);
        }
        prop_assert_eq!(model.ledger.used(&a), held);
    }
}
