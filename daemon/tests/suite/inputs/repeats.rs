//! Inputs that are staged again.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use skilld_client::TransferProgress;

use super::{input, save_artifact, stage_inputs, stage_one};
use crate::server::{TestServer, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_an_older_file_replaced_is_staged_again() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    save_artifact(&server, "ada", "a", "right").await;
    let (path, _) = stage_one(&server, &workspace, input("artifact://a")).await;
    let again = stage_inputs(&server, &workspace, [input("artifact://a")]).await;
    assert!(again.expect("staged")[0].unchanged);

    // An upload keeps the time of the file, which is before that of the staging.
    let local = tempfile::tempdir().expect("a directory");
    let other = local.path().join("a");
    // The clock that the kernel gives to files goes in steps of some milliseconds.
    let before = SystemTime::now();
    wait_until("files have a later time", async || {
        fs::write(&other, "wrong").expect("written");
        let written = fs::metadata(&other).and_then(|file| file.modified());
        (written.expect("a time") > before).then_some(())
    })
    .await;
    let file = File::options().write(true).open(&other);
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800);
    file.expect("opened").set_modified(old).expect("touched");
    let none = TransferProgress::none();
    let uploaded = server
        .client
        .upload_path(&workspace, &other, &path, none)
        .await;
    uploaded.expect("uploaded");
    let staged = stage_one(&server, &workspace, input("artifact://a")).await;
    assert_eq!(staged, (path, "right".to_owned()));
    assert!(server.stop().await);
}
