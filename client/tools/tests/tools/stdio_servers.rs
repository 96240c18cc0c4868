//! MCP servers on stdio: these tests are the programs when `skilld_testing::mcp` starts this binary again.

#[tokio::test]
async fn the_test_server_serves_on_stdio() {
    skilld_testing::mcp::serve_on_stdio().await;
}

#[tokio::test]
async fn the_test_server_stays_when_its_client_goes() {
    skilld_testing::mcp::serve_on_stdio_and_stay().await;
}
