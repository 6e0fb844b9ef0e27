// Leads on to the page and takes the address that led here, with its token, out of the history.
location.replace("/");
