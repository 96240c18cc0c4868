//! `skillctl workspace label`: what it sets, replaces, removes and leaves.

use skilld_client::v1::UpdateWorkspaceRequest;

use crate::commands::{fake, skillctl};

#[tokio::test]
async fn a_label_is_set_replaced_or_removed_and_the_others_stay() {
    let fake = fake();
    let label = async |changes: &[&str]| {
        let words = [&["workspace", "label", "w"], changes].concat();
        let output = skillctl(&fake, &words).output().await.expect("runs");
        let printed = String::from_utf8(output.stdout).expect("utf-8");
        (output.status.code(), printed)
    };
    for (changes, labels) in [
        (
            &["team=reports", "stage=test"][..],
            "stage=test team=reports\n",
        ),
        (&["stage=live"], "stage=live team=reports\n"),
        (&["team-", "rule=a=b-"], "rule=a=b- stage=live\n"),
        (&["team-"], "rule=a=b- stage=live\n"),
    ] {
        assert_eq!(label(changes).await, (Some(0), labels.into()));
        let workspace = fake.state.lock().workspaces["workspaces/w"].clone();
        let kept = workspace.labels.iter();
        let kept: Vec<String> = kept.map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(kept.join(" "), labels.trim_end());
    }
    // Nothing else of the workspace is replaced.
    let updates: Vec<UpdateWorkspaceRequest> = fake.calls.requests("UpdateWorkspace");
    let masks = updates.into_iter().map(|update| update.update_mask);
    assert!(masks.flatten().all(|mask| mask.paths == ["labels"]));
    for changes in [&[][..], &["stage"]] {
        assert_eq!(label(changes).await, (Some(2), String::new()));
    }
    assert_eq!(fake.calls.count("UpdateWorkspace"), 4);
}
