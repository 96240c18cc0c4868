//! Fonts and OCR languages of the operator: programs find them beside those of the image.
//!
//! Docker: fontconfig, Pillow and tesseract of the real images look for them in the mounted directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Result, ensure};
use skilld_client::v1::CreateWorkspaceRequest;
use skilld_tests::exec::{run, shell, shell_stdout};
use skilld_tests::{Daemon, Options, docker};
use tempfile::TempDir;

/// Makes a directory of fonts without a font.
fn fonts_dir() -> Result<TempDir> {
    let fonts = tempfile::tempdir()?;
    fs::set_permissions(fonts.path(), PermissionsExt::from_mode(0o755))?;
    fs::create_dir(fonts.path().join("tessdata"))?;
    fs::write(fonts.path().join("tessdata/qxz.traineddata"), "language")?;
    Ok(fonts)
}

#[tokio::test]
async fn only_containers_of_its_pool_have_the_fonts_read_only() -> Result<()> {
    let fonts = fonts_dir()?;
    let options = Options::default()
        .set("pools.default.fonts", &fonts.path().to_string_lossy())
        .set("pools.bare.warm", "0")
        .set("pools.bare.max", "1")
        .set("pools.bare.claim_timeout", "4m");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    for (pool, expected) in [
        (
            "default",
            "/usr/local/share:/usr/share:/opt/skilld\nlanguage\n",
        ),
        ("bare", "unset\n"),
    ] {
        let request = CreateWorkspaceRequest {
            pool: pool.to_owned(),
            ..CreateWorkspaceRequest::default()
        };
        let name = client.create_workspace(request).await?.name;
        let read = "echo ${XDG_DATA_DIRS-unset}; cd /opt/skilld/fonts/tessdata 2>/dev/null && \
                    echo $(cat qxz.traineddata); true";
        assert_eq!(shell_stdout(client, &name, read).await?, expected, "{pool}");
        let write = "echo x >/opt/skilld/fonts/tessdata/qxz.traineddata";
        let refused = run(client, &name, shell(write)).await?;
        assert_ne!(refused.exit_code(), Some(0), "{refused:?}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn programs_of_office_find_fonts_and_languages_of_the_operator() -> Result<()> {
    if !docker::has_image(docker::OFFICE_IMAGE).await? {
        println!("left out because {} is missing", docker::OFFICE_IMAGE);
        return Ok(());
    }
    let fonts = fonts_dir()?;
    let options = Options::default()
        .set("pools.default.warm", "0")
        .set("pools.office.image", docker::OFFICE_IMAGE)
        .set("pools.office.fonts", &fonts.path().to_string_lossy())
        .set("pools.office.max", "1")
        .set("pools.office.claim_timeout", "4m");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let create = async || {
        let request = CreateWorkspaceRequest {
            pool: "office".to_owned(),
            ..CreateWorkspaceRequest::default()
        };
        client.create_workspace(request).await
    };
    // The image has the only font that every host of this test has.
    let first = create().await?.name;
    let dejavu = "cat /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";
    let font = run(client, &first, shell(dejavu)).await?.stdout;
    ensure!(!font.is_empty(), "the image has no DejaVu");
    fs::write(fonts.path().join("operator.ttf"), font)?;
    client.delete_workspace(&first).await?;

    let name = create().await?.name;
    let listed = shell_stdout(client, &name, "fc-list : file").await?;
    for font in [
        "/opt/skilld/fonts/operator.ttf",
        "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
    ] {
        ensure!(listed.contains(font), "{font}: {listed}");
    }
    let pillow =
        "python3 -c 'from PIL import ImageFont; print(ImageFont.truetype(\"operator.ttf\").path)'";
    let found = shell_stdout(client, &name, pillow).await?;
    assert_eq!(found, "/opt/skilld/fonts/operator.ttf\n");
    let languages = shell_stdout(client, &name, "tesseract --list-langs").await?;
    for language in ["eng", "qxz"] {
        ensure!(
            languages.lines().any(|line| line == language),
            "{languages}"
        );
    }
    daemon.stop().await
}
