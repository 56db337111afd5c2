"""The experiment on exact unlearning: every method under one training cost and one stream of requests.

``matching`` makes the costs alike, ``course`` puts the stream to one method, ``cells`` names and stores what
was run, ``workers`` runs it; ``stored`` reads it back, and tables, figures and the page are made of what
``stored`` read and of nothing else.
"""
