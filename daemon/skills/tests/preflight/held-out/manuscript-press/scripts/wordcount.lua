local n = 0
function Str(el) if el.text:match("%w") then n = n + 1 end end
function Pandoc(doc)
  doc:walk({ Str = Str })
  io.stderr:write("words: " .. n .. "\n")
end
