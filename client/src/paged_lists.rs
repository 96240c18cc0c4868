//! Listings that the daemon answers in pages.

use skilld_proto::v1;

use crate::{Client, Error};

/// Request of a listing, which the daemon answers page by page.
pub trait PagedRequest {
    /// Answer that holds one page, or several of them.
    type Answer: Default;

    /// Reads the next page and appends its items to `all`; returns `false` after the last page.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    fn append_page(
        &mut self,
        client: &Client,
        all: &mut Self::Answer,
    ) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// Implements [`PagedRequest`] for requests by their calls, answers, lists in the answers and sizes of a page, which
/// are the daemon's maxima.
macro_rules! paged_requests {
    ($($call:ident: $request:ident -> $answer:ident { $($list:ident)+ } by $size:literal,)*) => {
        $(impl PagedRequest for v1::$request {
            type Answer = v1::$answer;

            async fn append_page(&mut self, client: &Client, all: &mut Self::Answer) -> Result<bool, Error> {
                self.page_size = $size;
                let page = client.$call(self.clone()).await?;
                $(all.$list.extend(page.$list);)+
                self.page_token = page.next_page_token;
                Ok(!self.page_token.is_empty())
            }
        })*
    };
}

paged_requests! {
    list_artifacts: ListArtifactsRequest -> ListArtifactsResponse { artifacts } by 1000,
    list_artifact_versions: ListArtifactVersionsRequest -> ListArtifactVersionsResponse { artifacts } by 1000,
    list_execs: ListExecsRequest -> ListExecsResponse { execs } by 1000,
    list_files: ListFilesRequest -> ListFilesResponse { files } by 10_000,
    list_pools: ListPoolsRequest -> ListPoolsResponse { pools } by 1000,
    list_problems: ListProblemsRequest -> ListProblemsResponse { problems } by 1000,
    list_skill_files: ListSkillFilesRequest -> ListSkillFilesResponse { files } by 10_000,
    list_skills: ListSkillsRequest -> ListSkillsResponse { skills problems } by 1000,
    list_tenant_usages: ListTenantUsagesRequest -> ListTenantUsagesResponse { tenant_usages } by 1000,
    list_workspaces: ListWorkspacesRequest -> ListWorkspacesResponse { workspaces } by 1000,
}

impl Client {
    /// Reads all pages of a listing into one answer.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses a call or cannot be reached.
    pub async fn read_all_pages<R: PagedRequest>(
        &self,
        mut request: R,
    ) -> Result<R::Answer, Error> {
        let mut all = R::Answer::default();
        while request.append_page(self, &mut all).await? {}
        Ok(all)
    }
}
