#!/bin/sh
set -eu
dir=${1:-.}
data=$(mktemp)
now=$(date +%s)

git ls-files -z -- "$dir" | xargs -0 -n1 sh -c '
  git blame --line-porcelain -- "$1" 2>/dev/null | sed -n "s/^author-time //p"
' _ | awk -v now="$now" '{ y = int((now - $1) / 31557600); c[y]++ } END { for (y in c) print y, c[y] }' \
  | sort -n > "$data"

gnuplot <<-EOF
	set terminal pngcairo size 900,500
	set output "ages.png"
	set boxwidth 0.8
	set style fill solid
	plot "$data" using 1:2 with boxes title "lines by age (years)"
EOF

cat > ages.md <<'EOF'
# Ages
![ages](ages.png)
To refresh this, start the stack with
    docker compose up -d
    terraform apply
and run the archaeologist again.
EOF
echo "ages.png ages.md"
