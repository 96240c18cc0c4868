//! Files over `skillctl mcp`: resources and their lists, files in results, and the tool that writes files.

use serde_json::{Value, json};
use skilld_client::v1::{ListArtifactsResponse, ListFilesResponse, ListSkillFilesResponse};
use skilld_testing::skills::Kit;

use crate::commands_mcp::{Client, fits, names, options};
use crate::commands_tool::fake;

#[tokio::test]
async fn results_contain_images_and_refer_to_other_binary_files() {
    let fake = fake();
    let png = b"\x89PNG\r\n\x1a\n\0\0".to_vec();
    {
        let mut state = fake.state.lock();
        state.staged.insert("out/p.png".into(), png.clone());
        state.staged.insert("out/p.bin".into(), vec![1, 0, 2]);
        let mut pdf = b"%PDF-1.7\n\0".to_vec();
        pdf.resize(1 << 20, 0);
        state.staged.insert("out/report.pdf".into(), pdf);
    }
    let mut client = Client::start(&fake, &[]).await;
    let tools = client.tools().await;
    let image = client
        .call("read_file", json!({"file_name": "workspace://out/p.png"}))
        .await;
    fits(&tools, "read_file", &image);
    let described = json!({
        "file_name": "workspace://out/p.png",
        "content": "",
        "start_line": 0,
        "end_line": 0,
        "size_bytes": 10,
        "mime_type": "image/png",
        "note": "an image, which is beside this result",
        "ref": "workspace://out/p.png",
    });
    assert_eq!(image["structuredContent"], described);
    let wanted = json!({
        "type": "image",
        "data": data_encoding::BASE64.encode(&png),
        "mimeType": "image/png",
    });
    assert_eq!(image["content"][1], wanted);
    let same = client
        .call("read_file", json!({"file_name": "/out/p.png"}))
        .await;
    assert_eq!(same["content"][1], wanted);
    for (path, size) in [("out/p.bin", 3), ("out/report.pdf", 1 << 20)] {
        let other = client.call("read_file", json!({"file_name": path})).await;
        fits(&tools, "read_file", &other);
        assert_eq!(other["content"].as_array().map(Vec::len), Some(1));
        let described = &other["structuredContent"];
        let note = "no text, and not shown: commands can read it";
        assert_eq!(described["note"], note);
        assert_eq!(described["ref"], format!("workspace://{path}"));
        assert_eq!(described["size_bytes"], size);
    }
}

#[tokio::test]
async fn files_not_shown_become_links_for_clients_that_want_links() {
    let fake = fake();
    let png = |bytes: usize| {
        let mut png = b"\x89PNG\r\n\x1a\n\0".to_vec();
        png.resize(bytes, 0);
        png
    };
    {
        let mut state = fake.state.lock();
        for (path, bytes) in [
            ("out/one.bin", vec![0; 1 << 20]),
            ("out/two.png", png(2 << 20)),
            ("out/four.png", png(4 << 20)),
        ] {
            state.staged.insert(path.to_owned(), bytes);
        }
    }
    let mut client = Client::start(&fake, &["--resource-links"]).await;
    let tools = client.tools().await;
    for (path, kind) in [
        ("out/one.bin", "resource_link"),
        ("out/two.png", "image"),
        ("out/four.png", "resource_link"),
    ] {
        let read = client.call("read_file", json!({"file_name": path})).await;
        fits(&tools, "read_file", &read);
        assert_eq!(read["content"][1]["type"], kind, "{path}");
    }
    let link = client
        .call("read_file", json!({"file_name": "out/four.png"}))
        .await;
    let wanted = json!({
        "type": "resource_link",
        "uri": "workspace://out/four.png",
        "name": "out/four.png",
        "mimeType": "image/png",
        "size": 4 << 20,
    });
    assert_eq!(link["content"][1], wanted);
    assert_eq!(link["structuredContent"]["size_bytes"], 4 << 20);
}

#[tokio::test]
async fn every_asset_has_a_reference_and_an_image_is_also_shown() {
    let fake = fake();
    let png = b"\x89PNG\r\n\x1a\n\0".to_vec();
    let mut kit = Kit::new("logo", "1.0.0")
        .file("assets/logo.png", png.clone())
        .file("assets/logo.pdf", b"%PDF-\0".to_vec());
    kit.skill.description = "A logo.".into();
    fake.state.lock().kits.push(kit);
    options(&fake, &json!({"family": "sherma"}));
    let mut client = Client::start(&fake, &["--options", "o.json"]).await;
    for (path, note, blocks) in [
        ("assets/logo.pdf", "no text, and not shown", 1),
        (
            "assets/logo.png",
            "an image, which is beside this result",
            2,
        ),
    ] {
        let asset = json!({"skill_id": "logo", "asset_path": path});
        let asset = client.call("load_skill_asset", asset).await;
        let described = &asset["structuredContent"];
        assert_eq!(described["binary"], true);
        assert_eq!(described["note"], note);
        assert_eq!(described["ref"], format!("skill://logo/{path}"));
        assert_eq!(asset["content"].as_array().map(Vec::len), Some(blocks));
    }
    let asset = json!({"skill_id": "logo", "asset_path": "assets/logo.png"});
    let asset = client.call("load_skill_asset", asset).await;
    assert_eq!(asset["content"][1]["type"], "image");
    assert_eq!(
        asset["content"][1]["data"],
        data_encoding::BASE64.encode(&png)
    );
}

#[tokio::test]
async fn a_written_file_is_in_the_workspace_and_the_resource_list() {
    let fake = fake();
    let mut client = Client::start(&fake, &[]).await;
    let tools = client.tools().await;
    let text = json!({"path": "inputs/a b.csv", "content": "a,b\n"});
    let written = client.call("workspace_write_file", text).await;
    fits(&tools, "workspace_write_file", &written);
    assert_eq!(
        written["structuredContent"]["ref"],
        "workspace://work/inputs/a b.csv"
    );
    assert_eq!(written["structuredContent"]["size_bytes"], 4);
    let bytes = json!({"path": "out/p.bin", "content_base64": "AQAC"});
    client.call("workspace_write_file", bytes).await;
    {
        let state = fake.state.lock();
        assert_eq!(state.staged["work/inputs/a b.csv"], b"a,b\n");
        assert_eq!(state.staged["out/p.bin"], [1, 0, 2]);
        assert_eq!(state.workspaces.len(), 1, "the session's");
    }
    client
        .call("workspace_save_artifact", json!({"path": "out/p.bin"}))
        .await;
    let page = client
        .request("resources/list", json!({}))
        .await
        .expect("a page");
    let listed = page["resources"].as_array().expect("resources");
    let uris: Vec<&str> = listed
        .iter()
        .filter_map(|one| one["uri"].as_str())
        .collect();
    assert_eq!(
        uris[..3],
        [
            "workspace://out/p.bin",
            "workspace://work/inputs/a%20b.csv",
            "artifact://out/p.bin@0"
        ]
    );
    for (uri, key, wanted) in [
        (uris[0], "blob", "AQAC"),
        ("workspace:///out/p.bin", "blob", "AQAC"),
        (uris[1], "text", "a,b\n"),
        (uris[2], "blob", "AQAC"),
    ] {
        let read = client.request("resources/read", json!({"uri": uri})).await;
        assert_eq!(read.expect(uri)["contents"][0][key], wanted, "{uri}");
    }
    let error = client
        .request("resources/read", json!({"uri": "workspace://out/no"}))
        .await;
    assert_eq!(error.expect_err("is not there")["code"], -32002);
}

#[tokio::test]
async fn many_uploads_hide_no_result_among_the_resources() {
    let fake = fake();
    {
        let mut state = fake.state.lock();
        for index in 0..1100 {
            for path in ["work/.skilld/u", "work/inputs/u", "out/old"] {
                state.staged.insert(format!("{path}{index:04}"), vec![b'a']);
            }
        }
        for path in ["work/result.csv", "out/z"] {
            state.staged.insert(path.to_owned(), vec![b'a']);
        }
        state.modified.insert("out/z".to_owned(), 5);
    }
    let mut client = Client::start(&fake, &[]).await;
    // A call makes the session's workspace.
    client
        .call("workspace_exec", json!({"command": "hello"}))
        .await;
    let page = client
        .request("resources/list", json!({}))
        .await
        .expect("a page");
    let listed = page["resources"].as_array().expect("resources");
    let uris: Vec<&str> = listed
        .iter()
        .filter_map(|one| one["uri"].as_str())
        .collect();
    assert_eq!(uris[0], "workspace://out/z", "the newest is the first");
    assert!(uris.contains(&"workspace://work/result.csv"));
    let count = |prefix: &str| uris.iter().filter(|uri| uri.starts_with(prefix)).count();
    assert_eq!(count("workspace://out/"), 1000);
    assert_eq!(count("workspace://work/inputs/"), 1000);
    assert_eq!(count("workspace://work/.skilld/"), 0);
}

#[tokio::test]
async fn a_list_of_resources_ends_although_the_pages_do_not() {
    let fake = fake();
    let mut client = Client::start(&fake, &[]).await;
    client
        .call("workspace_exec", json!({"command": "hello"}))
        .await;
    let next_page_token = "next".to_owned();
    let files = ListFilesResponse {
        next_page_token: next_page_token.clone(),
        ..Default::default()
    };
    fake.calls.reply("ListFiles", [files]);
    let files = ListSkillFilesResponse {
        next_page_token: next_page_token.clone(),
        ..Default::default()
    };
    fake.calls.reply("ListSkillFiles", [files]);
    let artifacts = ListArtifactsResponse {
        next_page_token,
        ..Default::default()
    };
    fake.calls.reply("ListArtifacts", [artifacts]);
    let listed = client.request("resources/list", json!({})).await;
    assert_eq!(listed.expect("a page")["resources"], json!([]));
    let calls = fake.calls.take();
    for (call, lists) in [
        ("FileService/ListFiles", 2),
        ("ArtifactService/ListArtifacts", 1),
        // Of four skills.
        ("SkillService/ListSkillFiles", 4),
    ] {
        let count = calls.iter().filter(|made| *made == call).count();
        assert!((lists..=100 * lists).contains(&count), "{count} {call}");
    }
}

#[tokio::test]
async fn a_resource_list_with_long_names_stays_below_2_mib() {
    let fake = fake();
    let name = "ü".repeat(1000);
    {
        let mut state = fake.state.lock();
        let mut kit = Kit::new("large", "1.0.0");
        for index in 0..1000 {
            kit = kit.file(&format!("{index:03}{name}"), "a");
        }
        // On the first page.
        state.kits.insert(0, kit);
        for index in 0..1000 {
            let path = format!("out/{index:03}{name}");
            state.staged.insert(path, vec![b'a']);
        }
        state.staged.insert("work/a".to_owned(), vec![b'a']);
    }
    let mut client = Client::start(&fake, &[]).await;
    client
        .call("workspace_exec", json!({"command": "hello"}))
        .await;
    let listed = client
        .request("resources/list", json!({}))
        .await
        .expect("a page")
        .to_string();
    assert!(listed.len() < 2 * 1024 * 1024, "{} bytes", listed.len());
    assert!(listed.contains("workspace://out/000"));
    assert!(listed.contains("workspace://work/a"), "the next kind");
    assert!(listed.contains("skill://large/000"));
}

#[tokio::test]
async fn writing_a_file_needs_a_path_in_work_or_out_and_one_content() {
    let fake = fake();
    let mut client = Client::start(&fake, &[]).await;
    for (wrong, problem) in [
        (
            json!({"path": "skills/x", "content": ""}),
            "beneath work/ or out/",
        ),
        (
            json!({"path": "out/../../x", "content": ""}),
            "must not contain ..",
        ),
        (json!({"path": "out/x"}), "content is missing"),
        (
            json!({"path": "out/x", "content": null, "content_base64": ""}),
            "content is missing",
        ),
        (
            json!({"path": "out/x", "content": "a", "content_base64": "YQ=="}),
            "not both",
        ),
        (
            json!({"path": "out/x", "content_base64": "!"}),
            "is not base64",
        ),
    ] {
        let id = client.begin_call("workspace_write_file", wrong).await;
        let refused = client.answer(id).await.expect("a result");
        assert_eq!(refused["isError"], true);
        assert!(refused.to_string().contains(problem), "{refused}");
    }
}

#[tokio::test]
async fn a_profile_without_commands_hides_the_workspaces_files() {
    let fake = fake();
    fake.state
        .lock()
        .staged
        .insert("out/a".into(), b"a".to_vec());
    options(&fake, &json!({"profile": "knowledge_only"}));
    let mut client = Client::start(&fake, &["--options", "o.json"]).await;
    assert!(!names(&client.tools().await).contains(&"workspace_write_file"));
    let id = client
        .begin_call("workspace_write_file", json!({"path": "out/a"}))
        .await;
    assert_eq!(
        client.answer(id).await.expect_err("unknown")["code"],
        -32602
    );
    let read = client
        .request("resources/read", json!({"uri": "workspace://out/a"}))
        .await;
    assert_eq!(read.expect_err("hidden")["code"], -32002);
}

#[tokio::test]
async fn a_skill_that_is_hidden_is_no_resource() {
    let fake = fake();
    options(&fake, &json!({"skills": ["alpha", "beta"]}));
    let mut client = Client::start(&fake, &["--options", "o.json"]).await;
    // So many that they come in two pages.
    let many = ["a1", "a2", "a3", "a4", "a5", "a6", "a7"];
    let kits = many.map(|id| Kit::new(id, "1.0.0"));
    fake.state.lock().kits.splice(0..0, kits);
    fake.calls.take();
    let (mut uris, mut pages) = (Vec::new(), 0);
    let mut cursor = None;
    loop {
        let page = client
            .request("resources/list", json!({"cursor": cursor}))
            .await
            .expect("a page");
        pages += 1;
        let found = page["resources"].as_array().expect("resources").iter();
        uris.extend(found.map(|resource| resource["uri"].as_str().expect("a URI").to_owned()));
        cursor = page
            .get("nextCursor")
            .and_then(Value::as_str)
            .map(ToOwned::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(pages, 2);
    assert_eq!(
        uris,
        [
            "skill://alpha/SKILL.md",
            "skill://alpha/scripts/run.sh",
            "skill://beta/SKILL.md",
            "skill://beta/scripts/run.sh",
        ]
    );
    let read = client
        .request("resources/read", json!({"uri": "skill://alpha/SKILL.md"}))
        .await;
    assert_eq!(read.expect("a file")["contents"][0]["text"], "# alpha\n");
    for uri in [
        "skill://gamma/SKILL.md",
        "skill://alpha/no.md",
        "file:///etc/passwd",
        "skill://alpha",
    ] {
        let error = client.request("resources/read", json!({"uri": uri})).await;
        assert_eq!(error.expect_err(uri)["code"], -32002, "{uri}");
    }
    let error = client
        .request("resources/read", json!({"uri": "skill://alpha/..%2Fx"}))
        .await;
    assert_eq!(error.expect_err("leads out")["code"], -32602);
}

#[tokio::test]
async fn a_resource_is_read_as_far_as_a_message_has_room_for_it() {
    let most = (4096 - 64) * 1024 / 4 * 3;
    let fake = fake();
    let kit = Kit::new("large", "1.0.0")
        .file("most.bin", vec![0; most])
        .file("more.bin", vec![0; most + 1])
        .file("quotes.txt", vec![b'"'; most])
        .file("short.txt", vec![b'"'; 1 << 20]);
    fake.state.lock().kits = vec![kit];
    let mut client = Client::start(&fake, &[]).await;
    for (name, key, length) in [
        ("most.bin", "blob", most / 3 * 4),
        // Escaped it would be twice as long.
        ("quotes.txt", "blob", most / 3 * 4),
        ("short.txt", "text", 1 << 20),
    ] {
        let uri = format!("skill://large/{name}");
        let read = client.request("resources/read", json!({"uri": uri})).await;
        let contents = read.expect(name)["contents"][0].clone();
        assert_eq!(contents[key].as_str().map(str::len), Some(length), "{name}");
    }
    let error = client
        .request("resources/read", json!({"uri": "skill://large/more.bin"}))
        .await
        .expect_err("too large");
    assert_eq!(error["code"], -32602);
    let said = format!("has {} bytes; a message has room for {most}", most + 1);
    assert!(error.to_string().contains(&said), "{error}");
}

#[tokio::test]
async fn an_unkept_session_says_how_to_load_its_saved_artifact() {
    let fake = fake();
    fake.state
        .lock()
        .staged
        .insert("out/a.txt".into(), b"a".to_vec());
    for kept in [false, true] {
        let more: &[&str] = if kept {
            &["--session-file", "s.json"]
        } else {
            &[]
        };
        let mut client = Client::start(&fake, more).await;
        let saved = client
            .call("workspace_save_artifact", json!({"path": "out/a.txt"}))
            .await;
        let name = format!("out/a.txt@{}", saved["structuredContent"]["version"]);
        let reference = format!("artifact://{name}");
        assert_eq!(saved["structuredContent"]["ref"], reference);
        assert_eq!(saved["content"].as_array().map(Vec::len), Some(1));
        let note = saved["structuredContent"]["warnings"][0].as_str();
        if kept {
            assert_eq!(note, None);
            continue;
        }
        let load = format!("skillctl artifact load {name} --app skillctl --session ");
        let note = note.expect("a note");
        let (_, session) = note.split_once(&load).expect(note);
        assert!(!session.is_empty() && !session.contains(' '), "{note}");
    }
}
