//! Pages of artifacts and versions, and the numbers of versions.

use super::*;

#[tokio::test]
async fn pages_follow_one_another_in_the_order_of_names() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let scope = scope("app", "user", "session");
        let filler = "x".repeat(300);
        let mut names: Vec<String> = (0..2_500_u32)
            .map(|n| match n % 5 {
                0 => format!("dir/{n:04}"),
                1 => format!("user:{n:04}"),
                2 => format!("{filler}{n:04}"),
                _ => format!("{n:04}.txt"),
            })
            .collect();
        // Records alone: their bytes are not looked at, and of these there are many.
        let saved = save(&artifacts, &scope, "zzz", b"").await;
        artifacts
            .delete(&scope, &saved.name, None)
            .await
            .expect("deleted");
        let store = &artifacts.0.store;
        for text in &names {
            let of = name(text);
            let artifact = Artifact {
                scope: scope.of(&of),
                name: of,
                ..saved.clone()
            };
            let path = key::version_key(&key::name_key(&store.base, &scope, &artifact.name), 0);
            let record = VersionRecord::new(&artifact, "0").encode().expect("JSON");
            store
                .write_object(visible_operation("write"), &path, record)
                .await
                .expect("written");
        }
        names.sort_unstable();
        for size in [999, 2_500] {
            let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
            loop {
                let page = artifacts
                    .list(&scope, after.as_ref(), size)
                    .await
                    .expect("listed");
                assert!(page.artifacts.len() <= size);
                found.extend(
                    page.artifacts
                        .iter()
                        .map(|artifact| artifact.name.as_str().to_owned()),
                );
                pages += 1;
                let Some(next) = page.next else { break };
                after = Some(next);
            }
            assert!(found == names, "pages of {size}");
            assert_eq!(pages, names.len().div_ceil(size));
        }
        // From a name that is not there.
        let after = name("user:2");
        let page = artifacts
            .list(&scope, Some(&after), 1)
            .await
            .expect("listed");
        assert_eq!(page.artifacts[0].name.as_str(), "user:2001");
    }
}

#[tokio::test]
async fn versions_are_listed_oldest_first_in_pages() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let (scope, of) = (scope("", "", ""), name("a"));
        for n in 0..25_u8 {
            save(&artifacts, &scope, "a", &[n]).await;
        }
        artifacts
            .delete(&scope, &of, Some(3))
            .await
            .expect("deleted");
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = artifacts
                .versions(&scope, &of, after, 10)
                .await
                .expect("listed");
            found.extend(page.artifacts.iter().map(|artifact| artifact.version));
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        let expected: Vec<u64> = (0..25).filter(|version| *version != 3).collect();
        assert_eq!(found, expected);
        let none = artifacts
            .versions(&scope, &name("b"), None, 10)
            .await
            .expect_err("none");
        assert!(matches!(none, Error::ArtifactNotFound { .. }), "{none}");
    }
}

#[tokio::test]
async fn many_versions_of_one_name_do_not_hide_the_next_one() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let (scope, store) = (scope("", "", ""), &artifacts.0.store);
        save(&artifacts, &scope, "a", b"a").await;
        save(&artifacts, &scope, "z", b"z").await;
        let saved = save(&artifacts, &scope, "m", b"m").await;
        for version in 1..2_200 {
            let artifact = Artifact {
                version,
                ..saved.clone()
            };
            let path = key::version_key(&key::name_key(&store.base, &scope, &saved.name), version);
            let record = VersionRecord::new(&artifact, "0").encode().expect("JSON");
            store
                .write_object(visible_operation("write"), &path, record)
                .await
                .expect("written");
        }
        let listed = artifacts.list(&scope, None, 10).await.expect("listed");
        let names: Vec<_> = listed
            .artifacts
            .iter()
            .map(|a| (a.name.as_str(), a.version))
            .collect();
        assert_eq!(names, [("a", 0), ("m", 2_199), ("z", 0)]);
        let after = Some(2_100);
        let page = artifacts
            .versions(&scope, &saved.name, after, 1_000)
            .await
            .expect("listed");
        let found: Vec<u64> = page
            .artifacts
            .iter()
            .map(|artifact| artifact.version)
            .collect();
        assert_eq!((found, page.next), ((2_101..2_200).collect(), None));
    }
}

#[tokio::test]
async fn version_number_is_not_reused_while_a_later_one_exists() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let (scope, of) = (scope("", "", ""), name("a"));
        for n in 0..3_u8 {
            save(&artifacts, &scope, "a", &[n]).await;
        }
        artifacts
            .delete(&scope, &of, Some(1))
            .await
            .expect("deleted");
        let again = artifacts
            .delete(&scope, &of, Some(1))
            .await
            .expect_err("gone");
        assert!(
            matches!(
                again,
                Error::ArtifactNotFound {
                    version: Some(1),
                    ..
                }
            ),
            "{again}"
        );
        assert!(load(&artifacts, &scope, "a", Some(1)).await.is_err());
        assert_eq!(save(&artifacts, &scope, "a", b"x").await.version, 3);
        assert_eq!(
            load(&artifacts, &scope, "a", Some(0)).await.expect("there"),
            [0]
        );
        artifacts.delete(&scope, &of, None).await.expect("deleted");
        let none = artifacts.delete(&scope, &of, None).await.expect_err("none");
        assert!(
            matches!(none, Error::ArtifactNotFound { version: None, .. }),
            "{none}"
        );
        assert!(
            artifacts
                .list(&scope, None, 10)
                .await
                .expect("listed")
                .artifacts
                .is_empty()
        );
        assert_eq!(place.files(), [""; 0], "nothing of it stays");
        assert_eq!(save(&artifacts, &scope, "a", b"x").await.version, 0);
    }
}
