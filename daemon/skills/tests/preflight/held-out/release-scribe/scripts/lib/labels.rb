module Labels
  MAP = { 'bug' => 'Fixes', 'feature' => 'Features', 'docs' => 'Documentation' }.freeze
  def self.section(names) = MAP[names.find { |n| MAP.key?(n) }] || 'Other'
end
