//! Listings that the daemon answers in pages.

use skilld_client::{Error, v1};

/// Answer of a listing, which holds one page or several of them.
pub(crate) trait PagedAnswer: Default {
    /// Appends the items of the next page; returns the token of the page after it, empty after the last.
    fn append_page(&mut self, page: Self) -> String;
}

/// Implements [`PagedAnswer`] for answers by their lists.
macro_rules! paged_answers {
    ($($answer:ident: $($list:ident)+,)*) => {
        $(impl PagedAnswer for v1::$answer {
            fn append_page(&mut self, page: Self) -> String {
                $(self.$list.extend(page.$list);)+
                page.next_page_token
            }
        })*
    };
}

paged_answers! {
    ListArtifactsResponse: artifacts,
    ListArtifactVersionsResponse: artifacts,
    ListExecsResponse: execs,
    ListFilesResponse: files,
    ListSkillFilesResponse: files,
    ListSkillsResponse: skills problems,
    ListWorkspacesResponse: workspaces,
}

/// Reads all pages of a listing into one answer. `read` reads the page of a token, which is empty for the first.
pub(crate) async fn read_all_pages<A: PagedAnswer>(
    read: impl AsyncFn(String) -> Result<A, Error>,
) -> Result<A, Error> {
    let (mut all, mut token) = (A::default(), String::new());
    loop {
        token = all.append_page(read(token).await?);
        if token.is_empty() {
            return Ok(all);
        }
    }
}
