require 'minitest/autorun'
require_relative '../scripts/lib/labels'
class LabelsTest < Minitest::Test
  def test_bug = assert_equal('Fixes', Labels.section(%w[bug]))
  def test_cli = system('rubocop --version')
end
