//! Inputs from files of the host: only those beneath the folders of `files.host_roots`.

use std::os::unix::fs::symlink;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn host_files_are_staged_from_the_configured_folders_only() {
    let host = tempfile::tempdir().expect("directory");
    let root = host.path().join("root");
    std::fs::create_dir_all(root.join("deep")).expect("mkdir");
    std::fs::write(root.join("deep/table.csv"), "a,b\n").expect("write");
    std::fs::write(host.path().join("secret"), "secret").expect("write");
    symlink("../../secret", root.join("deep/link_out")).expect("link");
    let setting = format!("files.host_roots = [{root:?}]\n");
    let server = TestServer::start(&setting, &[]).await;
    let workspace = server.workspace().await;
    let prefix = format!("host://{}", root.display());
    for from in [
        format!("{prefix}/../secret"),
        format!("{prefix}/deep/../../secret"),
        format!("{prefix}/deep/link_out"),
        format!("host://{}/secret", host.path().display()),
        "host:///etc/passwd".to_owned(),
        "host:///".to_owned(),
    ] {
        let answer = stage_inputs(&server, &workspace, [input(&from)]).await;
        check_refused(answer, Code::PermissionDenied, Reason::PermissionDenied);
        check_nothing_staged(&server, &workspace).await;
    }
    let from = format!("{prefix}/deep/table.csv");
    let (path, text) = stage_one(&server, &workspace, input(&from)).await;
    assert_eq!(
        (path.as_str(), text.as_str()),
        ("work/inputs/table.csv", "a,b\n")
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn host_files_are_refused_without_a_configured_folder() {
    let host = tempfile::tempdir().expect("directory");
    let file = host.path().join("table.csv");
    std::fs::write(&file, "a,b\n").expect("write");
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    for path in [file.display().to_string(), "/etc/passwd".to_owned()] {
        let spec = input(&format!("host://{path}"));
        let answer = stage_inputs(&server, &workspace, [spec]).await;
        let message = check_refused(answer, Code::PermissionDenied, Reason::PermissionDenied);
        assert!(message.contains("files.host_roots"), "{message}");
    }
    check_nothing_staged(&server, &workspace).await;
    assert!(server.stop().await);
}
