"""The template of the page, as a module: Flower bundles hold no .html files."""

# Jinja2; see fedforget.reporting.html for what it is given.
PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1e21; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #dcdfe4; text-align: right; overflow-wrap: anywhere; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid #9aa1ab; font-weight: 600; }
.scroll { overflow-x: auto; } .note { color: #555b66; font-size: .85rem; max-width: 60rem; }
.warnings { background: #fdf3e1; border-left: 4px solid #c77c02; padding: .4rem 1rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 1rem 2rem; }
.facts h3 { font-size: .95rem; margin: .5rem 0 .2rem; } .facts td { text-align: left; }
pre { background: #f4f5f7; padding: 1rem; overflow-x: auto; font-size: .85rem; } img { max-width: 100%; }
figure { margin: 1rem 0; } figcaption { color: #555b66; font-size: .85rem; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% if warnings %}
<div class="warnings">
<ul>
{% for warning in warnings %}
<li>{{ warning }}</li>
{% endfor %}
</ul>
</div>
{% endif %}
{% for table in tables %}
<h2>{{ table.title }}</h2>
<div class="scroll">
<table>
<thead><tr>{% for column in table.columns %}<th>{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table>
</div>
{% for note in table.notes %}
<p class="note">{{ note }}</p>
{% endfor %}
{% endfor %}
{% for caption, source in figures %}
<figure><img src="{{ source }}" alt="{{ caption }}"><figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
<h2>The run</h2>
<div class="facts">
{% for heading, rows in facts %}
<div><h3>{{ heading }}</h3>
<table>
{% for key, value in rows %}
<tr><td>{{ key }}</td><td>{{ value }}</td></tr>
{% endfor %}
</table>
</div>
{% endfor %}
</div>
<details>
<summary>Configuration</summary>
<pre>{{ config }}</pre>
</details>
</body>
</html>
"""
