#!/bin/sh
# Fetches axe-core's minified file again from the npm registry; fails where it is another.
set -eu
cd "$(dirname "$0")"
npm pack --silent axe-core@4.14.1
tar -xzf axe-core-4.14.1.tgz --strip-components=1 package/axe.min.js
rm axe-core-4.14.1.tgz
echo "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c  axe.min.js" | sha256sum --check
