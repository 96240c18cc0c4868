//! Archives are installed whole or not at all: also if a later file fails or the caller goes away.

use super::*;

fn run(program: &str, args: &[&str], path: &std::path::Path) -> bool {
    let mut command = std::process::Command::new(program);
    let status = command.args(args).arg(path).status();
    status.is_ok_and(|status| status.success())
}

/// Mounted file system, unmounted when the test ends.
struct Unmount(std::path::PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        run("umount", &["-l"], &self.0);
    }
}

/// The move of a file reveals another file system in the workspace only after other files are installed.
#[tokio::test]
async fn replaced_files_come_back_when_a_later_file_fails() {
    let guest = Guest::start().await;
    let work = guest.workspace().join("work");
    let other = work.join("other");
    fs::create_dir(&other).expect("made");
    let mounted = run("mount", &["-t", "tmpfs", "none"], &other);
    let unmount = Unmount(other);
    if !mounted {
        println!("not tested: may not mount");
        return;
    }
    fs::write(work.join("a"), "precious").expect("made");
    std::os::unix::fs::symlink("nowhere", work.join("l")).expect("made");
    let bytes = archive(&[
        file("a", "new"),
        file("d/b", "new"),
        file("l", "new"),
        file("other/x", "new"),
    ]);
    check_at(&guest, "another file system", "work", &bytes).await;
    drop(unmount);
    assert_eq!(fs::read(work.join("a")).expect("kept"), b"precious");
    let link = fs::read_link(work.join("l")).expect("kept");
    assert_eq!(link.as_os_str(), "nowhere");
}

#[tokio::test]
async fn a_received_archive_is_installed_whole_despite_cancellation() {
    use skilld_proto::guest::v1::{PutFilesRequest, put_files_request::Payload};

    const FILES: usize = 5_000;
    let guest = Guest::start().await;
    let place = guest.workspace().join("work/many");
    let named = |number: usize| format!("{number:05}");
    fs::create_dir_all(&place).expect("directories");
    for number in 0..FILES {
        fs::write(place.join(named(number)), "old").expect("written");
    }
    let entries: Vec<_> = (0..FILES)
        .map(|number| file(&named(number), "new"))
        .collect();
    let data = archive(&entries);
    let first = Payload::Header(header(StageFormat::Tar, "work/many"));
    let pieces = data.chunks(1 << 20);
    let messages: Vec<_> = std::iter::once(first)
        .chain(pieces.map(|piece| Payload::Data(piece.to_vec().into())))
        .map(|payload| PutFilesRequest {
            payload: Some(payload),
        })
        .collect();
    let is_new = |number: usize| {
        let text = fs::read_to_string(place.join(named(number)));
        text.is_ok_and(|text| text == "new")
    };
    let mut client = guest.client.clone();
    let mut put = Box::pin(client.put_files(tokio_stream::iter(messages)));
    let begun = async {
        while !is_new(0) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        // It was too fast to be cancelled.
        put = &mut put => assert!(put.is_ok(), "{put:?}"),
        () = begun => {}
    }
    drop(put);
    // It is removed at the end.
    while guest.workspace().join(".stage").exists() {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let new = (0..FILES).filter(|number| is_new(*number)).count();
    assert_eq!(new, FILES, "some files are new and some are not");
}
