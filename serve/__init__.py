"""Models behind OpenAI's interface: what ``omnidraft serve`` runs.

One thread answers, whatever the number of models: a machine that computes two passes at once makes
both of them slower. Requests take turns between the rounds of their answers.

- ``requests``: what may be asked, and what is refused by its name; ``messages``: conversations;
- ``forms``: what answers are held to; ``grammar``: the masks for it; ``penalties``;
- ``tools``: functions that may be called; ``calls``: how models write calls; ``call_grammar``;
  ``json_text``;
- ``models``: opened and closed; ``preparing``: what a request is for its model;
- ``turns``: who is next; ``answering``: the thread, and requests that wait for it; ``threads``;
- ``replies``, ``tool_replies``: answers as OpenAI's objects; ``sending``: them on the wire, whole
  or streamed;
- ``drafting``: what is told of drafting beside OpenAI's fields; ``page``: the page at ``/``;
- ``guard``: who may ask at all; ``errors``: refusals in OpenAI's form; ``metrics``;
- ``description``: all that for programs; ``app``: the routes; ``server``: the process.
"""
