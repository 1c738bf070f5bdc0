# What the demo runs inside the sandbox: where am I, what is here, what has changed. Needs git and awk only.
{
printf 'in %s as %s on %s\n\n' "$PWD" "$(id -un 2>/dev/null || id -u)" "$(uname -sr)"
echo "the last commits"
git --no-pager log --oneline -3 | sed 's/^/  /'
changes=$(git status --short | wc -l)
printf '\nuncommitted changes that came along: %d\n' "$changes"
git status --short | head -5 | sed 's/^/  /'
printf '\nlines by kind, of %d files\n' "$(git ls-files | wc -l)"
git ls-files -z | xargs -0 wc -l 2>/dev/null | awk '
    $2 == "total" { next }
    { n = split($2, path, "/"); m = split(path[n], name, "."); kind = m > 1 ? name[m] : "other"; lines[kind] += $1 }
    END { for (kind in lines) print lines[kind], kind }' | sort -rn | head -7 | awk '
    NR == 1 { widest = $1 > 0 ? $1 : 1 }
    { bar = ""; for (i = 0; i < 40 * $1 / widest; i++) bar = bar "#"; printf "  %-10s %7d %s\n", $2, $1, bar }'
} | sed 's/^/  /'
