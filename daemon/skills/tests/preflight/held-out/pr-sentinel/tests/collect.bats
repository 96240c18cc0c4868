#!/usr/bin/env bats
setup() { PATH="$BATS_TEST_DIRNAME/stubs:$PATH"; }
@test "needs a number" {
  run scripts/collect.sh
  [ "$status" -ne 0 ]
}
@test "emits json" { run bash -c 'scripts/collect.sh 1 | jaq .'; [ "$status" -eq 0 ]; }
