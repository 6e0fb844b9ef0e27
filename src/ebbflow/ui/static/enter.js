// Opens the web UI, and replaces the address with the token in the browser's history.
location.replace("/");
