//! Environments that were prepared for published skills.

use std::collections::BTreeSet;

use skilld::skills::SkillScope;
use skilld::skills::environments::environment_record::{EnvironmentKey, PreparedEnvironment};

use super::*;

#[tokio::test]
async fn a_published_skill_needs_the_environments_of_its_own_tenant() {
    let fixture = Fixture::new();
    let text = "---\nname: needy\ndescription: d\n---\n";
    let archive = tar_of([
        ("SKILL.md", text.as_bytes(), 0o644),
        ("requirements.txt", b"requests\n".as_slice(), 0o644),
    ]);
    let of_tenant = fixture.skills.in_scope(SkillScope::Tenant {
        name: "a".to_owned(),
        roots: None,
    });
    let mut file = of_tenant.create_upload().await.expect("a file");
    file.write_all(&archive).expect("written");
    let published = of_tenant.publish("needy".to_owned(), file, None, None);
    published.await.expect("published");
    let wanted = SkillRef::parse("name", "needy").expect("valid");
    let staged = of_tenant.environment_need(wanted).await.expect("read");
    let need = staged.environment_need.digest();
    let prepared = ["a", "b", "default"].map(|tenant| PreparedEnvironment {
        name: format!("of-{tenant}"),
        key: EnvironmentKey {
            tenant: tenant.to_owned(),
            need: need.clone(),
            ..EnvironmentKey::default()
        },
        skills: BTreeSet::from(["needy".to_owned()]),
    });
    let needed = fixture.skills.find_needed(prepared.into()).await;
    assert_eq!(needed.expect("known"), HashSet::from(["of-a".to_owned()]));
}
